/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A function that programs call; libmrc.map gives it its version. */
#define EXPORT __attribute__((visibility("default")))
