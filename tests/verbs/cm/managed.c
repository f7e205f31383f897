/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_cm: ports, connections and their events, both ends in one process. */
#include "managed.h"

/* Reasons of the InfiniBand specification. */
enum { NO_RESOURCES = 3, NO_LISTENER = 8, CONSUMER = 28 };

static void ports(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *first = listening(channel, 4);
  struct rdma_cm_id *second = new_id(channel);
  struct rdma_cm_id *third = new_id(channel);
  int reuse = 1;
  FAILS(bind_to(second, port_of(first)), EADDRINUSE);
  CHECK(bind_to(second, 0) == 0 && port_of(second) != port_of(first));
  FAILS(bind_to(second, 0), EINVAL); /* it has one */
  const uint16_t port = port_of(first);
  end(first);
  first = new_id(channel);
  CHECK(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse) ==
        0);
  CHECK(rdma_set_option(third, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse) ==
        0);
  CHECK(bind_to(first, port) == 0 && bind_to(third, port) == 0);
  FAILS(rdma_listen(third, 1), EADDRINUSE);
  struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
  struct rdma_cm_id *fourth = new_id(channel);
  FAILS(rdma_bind_addr(fourth, (struct sockaddr *)&elsewhere), EADDRNOTAVAIL);
  end(first);
  end(second);
  end(third);
  end(fourth);
  rdma_destroy_event_channel(channel);
  passed("ports");
}

static void no_listener(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *other = new_id(channel); /* bound, and does not listen */
  CHECK(bind_to(other, 0) == 0);
  struct rdma_cm_id *id = resolved(channel, port_of(other));
  struct rdma_conn_param param = params(NULL);
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_REJECTED) == NO_LISTENER);
  end(id);
  end(other);
  rdma_destroy_event_channel(channel);
  passed("no listener");
}

static void rejected(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *listener = listening(channel, 4);
  struct rdma_cm_id *id = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params("let me in");
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  struct rdma_cm_id *child = event->id;
  CHECK(event->listen_id == listener && child->context == channel);
  CHECK(event->param.conn.private_data_len == 9);
  CHECK(memcmp(event->param.conn.private_data, "let me in", 9) == 0);
  CHECK(rdma_ack_cm_event(event) == 0);
  CHECK(rdma_reject(child, "no", 2) == 0);
  event = next_event(channel, RDMA_CM_EVENT_REJECTED);
  CHECK(event->id == id && event->status == CONSUMER);
  CHECK(memcmp(event->param.conn.private_data, "no", 2) == 0);
  CHECK(rdma_ack_cm_event(event) == 0);
  end(child);
  end(id);
  end(listener);
  rdma_destroy_event_channel(channel);
  passed("rejected");
}

/* Takes the request at a channel; returns the id that it makes. */
static struct rdma_cm_id *requested(struct rdma_event_channel *channel) {
  struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  struct rdma_cm_id *child = event->id;
  CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 1);
  CHECK(event->param.conn.qp_num != 0 && event->param.conn.private_data);
  CHECK(rdma_ack_cm_event(event) == 0);
  return child;
}

static void exchange(struct rdma_cm_id *from, struct rdma_cm_id *to) {
  char sent[64] = "over an id";
  char got[64] = "";
  struct ibv_wc wc;
  struct ibv_mr *source = rdma_reg_msgs(from, sent, sizeof sent);
  struct ibv_mr *target = rdma_reg_msgs(to, got, sizeof got);
  CHECK(source && target);
  CHECK(rdma_post_recv(to, got, got, sizeof got, target) == 0);
  CHECK(rdma_post_send(from, sent, sent, sizeof sent, source, 0) == 0);
  CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(strcmp(got, sent) == 0);
  rdma_dereg_mr(source);
  rdma_dereg_mr(target);
}

static void connected(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_event_channel *there = new_channel();
  struct rdma_cm_id *listener = listening(there, 4);
  struct rdma_cm_id *id = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params("hello");
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  struct rdma_cm_id *child = requested(there);
  CHECK(port_of(child) == port_of(listener) && ntohs(rdma_get_dst_port(child)) == port_of(id));
  give_qp(child);
  param = params("welcome");
  CHECK(rdma_accept(child, &param) == 0);
  struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_ESTABLISHED);
  CHECK(event->id == id && event->param.conn.private_data_len == 7);
  CHECK(memcmp(event->param.conn.private_data, "welcome", 7) == 0);
  CHECK(rdma_ack_cm_event(event) == 0);
  CHECK(expect(there, RDMA_CM_EVENT_ESTABLISHED) == 0);
  exchange(id, child);
  exchange(child, id);
  CHECK(rdma_disconnect(child) == 0);
  CHECK(expect(there, RDMA_CM_EVENT_DISCONNECTED) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
  CHECK(rdma_disconnect(id) == 0); /* as programs do */
  CHECK(expect(there, RDMA_CM_EVENT_TIMEWAIT_EXIT) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT) == 0);
  end(id);
  end(child);
  end(listener);
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(there);
  passed("connected");
}

/* A program that connects its QP itself. */
static void own_qp(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_event_channel *there = new_channel();
  struct rdma_cm_id *listener = listening(there, 4);
  struct rdma_cm_id *id = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params(NULL);
  give_qp(id);
  struct ibv_qp *qp = id->qp;
  id->qp = NULL;
  param.qp_num = qp->qp_num;
  CHECK(rdma_connect(id, &param) == 0);
  struct rdma_cm_id *child = requested(there);
  give_qp(child);
  CHECK(rdma_accept(child, &param) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE) == 0);
  for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = 0;
    CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
  }
  CHECK(rdma_establish(id) == 0);
  CHECK(expect(there, RDMA_CM_EVENT_ESTABLISHED) == 0);
  id->qp = qp;
  exchange(child, id);
  end(id); /* which disconnects */
  CHECK(expect(there, RDMA_CM_EVENT_DISCONNECTED) == 0);
  end(child);
  end(listener);
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(there);
  passed("own QP");
}

static void limits(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *listener = listening(channel, 2);
  struct rdma_cm_id *ids[4];
  char text[58] = "";
  memset(text, 'x', sizeof text - 1);
  for (int i = 0; i < 4; i++) {
    ids[i] = resolved(channel, port_of(listener));
    struct rdma_conn_param param = params(text); /* 57 bytes */
    give_qp(ids[i]);
    FAILS(rdma_connect(ids[i], &param), EINVAL);
    param = params(text + 1);
    param.initiator_depth = 100;
    FAILS(rdma_connect(ids[i], &param), EINVAL);
    param.initiator_depth = RDMA_MAX_INIT_DEPTH;
    CHECK(rdma_connect(ids[i], &param) == 0);
    if (i < 2) {
      struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
      CHECK(event->param.conn.private_data_len == 56);
      struct rdma_cm_id *child = event->id;
      rdma_ack_cm_event(event);
      child->context = NULL;
    } else {
      CHECK(expect(channel, RDMA_CM_EVENT_REJECTED) == NO_RESOURCES);
    }
  }
  for (int i = 0; i < 4; i++)
    end(ids[i]);
  CHECK(expect(channel, RDMA_CM_EVENT_UNREACHABLE) == -ETIMEDOUT); /* they do not want it now */
  CHECK(expect(channel, RDMA_CM_EVENT_UNREACHABLE) == -ETIMEDOUT);
  end(listener);
  passed("limits");
}

static void polled(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_event_channel *there = new_channel();
  struct pollfd fd = {.fd = there->fd, .events = POLLIN};
  struct rdma_cm_event *event;
  CHECK(fcntl(there->fd, F_SETFL, fcntl(there->fd, F_GETFL) | O_NONBLOCK) == 0);
  FAILS(rdma_get_cm_event(there, &event), EAGAIN);
  struct rdma_cm_id *listener = listening(there, 4);
  CHECK(poll(&fd, 1, 0) == 0);
  struct rdma_cm_id *id = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params(NULL);
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  CHECK(poll(&fd, 1, -1) == 1);
  struct rdma_cm_id *child = requested(there);
  CHECK(poll(&fd, 1, 0) == 0);
  FAILS(rdma_get_cm_event(there, &event), EAGAIN);
  end(child); /* unanswered: that rejects */
  CHECK(expect(channel, RDMA_CM_EVENT_REJECTED) == CONSUMER);
  end(id);
  end(listener);
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(there);
  passed("polled");
}

static void *acknowledge(void *event) {
  CHECK(rdma_ack_cm_event(event) == 0);
  return NULL;
}

/* Events of an id that is destroyed, or moved. */
static void left_over(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_event_channel *there = new_channel();
  struct rdma_event_channel *other = new_channel();
  struct rdma_cm_id *listener = listening(there, 4);
  struct rdma_cm_id *id = resolved(channel, port_of(listener));
  struct rdma_conn_param param = params(NULL);
  struct pollfd fd = {.fd = there->fd, .events = POLLIN};
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  CHECK(poll(&fd, 1, -1) == 1);
  CHECK(rdma_migrate_id(listener, other) == 0);
  CHECK(poll(&fd, 1, 0) == 0 && listener->channel == other);
  fd.fd = other->fd;
  CHECK(poll(&fd, 1, 0) == 1);
  end(listener); /* with the request that waits, which it rejects */
  CHECK(poll(&fd, 1, 0) == 0);
  struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
  CHECK(event->status == CONSUMER);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, acknowledge, event) == 0);
  end(id); /* waits for that */
  CHECK(pthread_join(thread, NULL) == 0);
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(there);
  rdma_destroy_event_channel(other);
  passed("left over");
}

static void refused(void) {
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *id;
  struct sockaddr_in group = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("224.0.0.1")};
  FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
  id = resolved(channel, 9);
  FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EOPNOTSUPP);
  FAILS(rdma_accept(id, NULL), EINVAL);
  FAILS(rdma_disconnect(id), EINVAL);
  FAILS(rdma_resolve_addr(id, NULL, NULL, 1), EAFNOSUPPORT);
  int n = 0;
  struct ibv_context **devices = rdma_get_devices(&n);
  CHECK(devices && n == 1 && devices[0] == id->verbs && !devices[1]);
  rdma_free_devices(devices);
  CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT") == 0);
  end(id);
  rdma_destroy_event_channel(channel);
  passed("refused");
}

int main(void) {
  ports();
  no_listener();
  rejected();
  connected();
  own_qp();
  limits();
  polled();
  left_over();
  refused();
  return 0;
}
