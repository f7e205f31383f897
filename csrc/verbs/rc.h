/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC (csrc/rc) of a program's QPs: their memory, receives and completions. Under the
   lock. */
#pragma once

#include "verbs/objects.h"

/* Whether the program was started with `mrc run --rc`. The first time it says so on stderr. */
bool vb_rc_is_on(void);
/* The QP moves to RTR: makes its inbox, and tells `qp->connect` where it is. A positive errno. */
int vb_rc_open(struct vb_qp *qp);
/* Both ends are in RTS. */
void vb_rc_ready(struct vb_qp *qp, const struct mrc_agent_ready *ready);
/* The handle is reset or destroyed. `exists`: the engine may still send from its memory. */
void vb_rc_leave(struct vb_qp *qp, bool exists);
/* The engine's QP is destroyed. */
void vb_rc_gone(uint32_t qpn);

/* A completion of the engine. */
void vb_rc_complete(struct vb_qp *qp, const struct mrc_wc *wc);
/* The program has posted n receives. */
void vb_rc_receives(struct vb_qp *qp, uint32_t n);
/* Sends what can be sent. */
void vb_rc_send(struct vb_qp *qp);
/* After a turn of the engine: the same for all QPs that were touched. */
void vb_rc_turned(void);
/* Fails QPs that have waited for a receive of the peer for longer than the program allows. Others
   that wait for their peer send it something from time to time. */
void vb_rc_tick(uint64_t now_ns);
