/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MRC_PROGRAM_EXPORT_H
#define MRC_PROGRAM_EXPORT_H

/* A function that programs call; libmrc.map gives it its version. */
#define EXPORT __attribute__((visibility("default")))

#endif
