/* SPDX-License-Identifier: Apache-2.0 */
/* Part of mrc.h: readings of the specification that an engine follows in place of its own, see
   csrc/core/specification.md. tools/readings writes them. */
#pragma once

/* cdef begin */

/* tools/readings */
enum mrc_reading {
  MRC_READING_C3_B = 1,    /* puts the source port into the low half of EVs in answers */
  MRC_READING_C4_A = 2,    /* drops a PSN beyond the window silently */
  MRC_READING_S5_B = 4,    /* sends no transport ACK while an earlier packet is missing */
  MRC_READING_S8_B = 8,    /* sends no mark in answers to EV probes */
  MRC_READING_C6_B = 16,   /* puts the operation of endpoint responses into bits 5:4, and no mark */
  MRC_READING_G2_A = 32,   /* sends a SACK after 16 KiB */
  MRC_READING_G2_B = 64,   /* sends a SACK after 4 KiB */
  MRC_READING_G5_A = 128,  /* lets a marked EV sit out one turn; a packet ends one skip */
  MRC_READING_G10_B = 256, /* sends no NACK for a packet trimmed within its RETH */
  MRC_READING_G15_B = 512, /* reflects timestamps as they came */
  MRC_READING_S1_A = 1024, /* grants 128 PSNs unless Queues.mpr is set */
  MRC_READING_S4_B = 2048  /* calls EVs bad whose packets all come marked */
};
enum { MRC_ALL_READINGS = 4095 };
/* end */

/* cdef end */
