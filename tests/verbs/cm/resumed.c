/* SPDX-License-Identifier: Apache-2.0 */
/* Ids whose agent ends, and that the next one takes up. */
#include "managed.h"

static struct rdma_event_channel *channel;
static struct rdma_event_channel *there;

struct both {
  struct rdma_cm_id *id;
  struct rdma_cm_id *child;
};

static struct both connect_both(struct rdma_cm_id *listener) {
  struct both made = {.id = resolved(channel, port_of(listener))};
  struct rdma_conn_param param = params(NULL);
  give_qp(made.id);
  CHECK(rdma_connect(made.id, &param) == 0);
  struct rdma_cm_event *event = next_event(there, RDMA_CM_EVENT_CONNECT_REQUEST);
  made.child = event->id;
  rdma_ack_cm_event(event);
  give_qp(made.child);
  CHECK(rdma_accept(made.child, &param) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
  CHECK(expect(there, RDMA_CM_EVENT_ESTABLISHED) == 0);
  return made;
}

static void disconnect_both(struct both both, struct rdma_cm_id *first) {
  CHECK(rdma_disconnect(first) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
  CHECK(expect(there, RDMA_CM_EVENT_DISCONNECTED) == 0);
  end(both.id);
  end(both.child);
}

int main(void) {
  channel = new_channel();
  there = new_channel();
  struct rdma_cm_id *listener = listening(there, 4);
  struct both first = connect_both(listener);
  struct both second = connect_both(listener);
  struct rdma_cm_id *asking = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params(NULL);
  give_qp(asking);
  CHECK(rdma_connect(asking, &param) == 0);
  struct rdma_cm_event *event = next_event(there, RDMA_CM_EVENT_CONNECT_REQUEST);
  struct rdma_cm_id *asked = event->id;
  rdma_ack_cm_event(event);
  passed("connected");
  CHECK(getchar() == '\n'); /* meanwhile there is another agent */
  CHECK(expect(channel, RDMA_CM_EVENT_UNREACHABLE) == -ECONNRESET);
  CHECK(expect(there, RDMA_CM_EVENT_UNREACHABLE) == -ECONNRESET);
  end(asking);
  end(asked);
  disconnect_both(first, first.id);
  disconnect_both(second, second.child);
  struct both third = connect_both(listener);
  disconnect_both(third, third.id);
  end(listener);
  passed("resumed");
  return 0;
}
