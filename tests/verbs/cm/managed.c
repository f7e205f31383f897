/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_cm, with both ends in one process. Prints each part that passed.

     managed             ports, connections and their events
     managed endpoints   ids without a channel, whose calls wait: rdma_create_ep and what belongs to
   it managed resumed     ids whose agent ends, and that the next one takes up */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>

#include "../pair.h"

/* ======== Ids, their events and QPs ======== */

/* The call fails with this errno. */
#define FAILS(call, error) CHECK((errno = 0, (call) == -1 && errno == (error)))

static struct sockaddr_in address(uint16_t port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static struct rdma_event_channel *new_channel(void) {
  struct rdma_event_channel *made = rdma_create_event_channel();
  CHECK(made);
  return made;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *at) {
  struct rdma_cm_id *id = NULL;
  CHECK(rdma_create_id(at, &id, at, RDMA_PS_TCP) == 0);
  return id;
}

static int bind_to(struct rdma_cm_id *id, uint16_t port) {
  struct sockaddr_in at = address(port);
  return rdma_bind_addr(id, (struct sockaddr *)&at);
}

static uint16_t port_of(struct rdma_cm_id *id) { return ntohs(rdma_get_src_port(id)); }

/* Ids that call have the first channel, and the id that listens at a free port the other one. */
static struct rdma_event_channel *channel, *there;
static struct rdma_cm_id *listener;

static void begin(int backlog) {
  channel = new_channel();
  there = new_channel();
  listener = new_id(there);
  CHECK(bind_to(listener, 0) == 0 && port_of(listener) != 0);
  CHECK(rdma_listen(listener, backlog) == 0);
}

/* The next event of a channel, which has to be of this type. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *at,
                                        enum rdma_cm_event_type type) {
  struct rdma_cm_event *event = NULL;
  CHECK(rdma_get_cm_event(at, &event) == 0);
  if (event->event != type)
    fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
  CHECK(event->event == type);
  return event;
}

/* The same for one that has nothing more to say. Returns its status. */
static int expect(struct rdma_event_channel *at, enum rdma_cm_event_type type) {
  struct rdma_cm_event *event = next_event(at, type);
  const int status = event->status;
  CHECK(rdma_ack_cm_event(event) == 0);
  return status;
}

/* An id whose route to this port is known. */
static struct rdma_cm_id *resolved(uint16_t port) {
  struct rdma_cm_id *id = new_id(channel);
  struct sockaddr_in to = address(port);
  CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && id->verbs);
  CHECK(rdma_resolve_route(id, 1000) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0 && id->route.num_paths == 1);
  return id;
}

static struct ibv_qp_init_attr qp_attr(void) {
  return (struct ibv_qp_init_attr){
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC,
      .sq_sig_all = 1};
}

static void give_qp(struct rdma_cm_id *id) {
  struct ibv_qp_init_attr attr = qp_attr();
  CHECK(rdma_create_qp(id, NULL, &attr) == 0 && id->qp && id->pd && id->send_cq && id->recv_cq);
}

static struct rdma_conn_param params(const char *text) {
  return (struct rdma_conn_param){.private_data = text,
                                  .private_data_len = text ? (uint8_t)strlen(text) : 0,
                                  .responder_resources = 1,
                                  .initiator_depth = 2,
                                  .retry_count = 7,
                                  .rnr_retry_count = 7};
}

/* An id with a QP that calls a port, with this text. */
static struct rdma_cm_id *calling(uint16_t port, const char *text) {
  struct rdma_cm_id *id = resolved(port);
  struct rdma_conn_param param = params(text);
  give_qp(id);
  CHECK(rdma_connect(id, &param) == 0);
  return id;
}

static void end(struct rdma_cm_id *id) {
  if (id->qp) rdma_destroy_qp(id);
  CHECK(rdma_destroy_id(id) == 0);
}

static void finish(const char *part) {
  if (listener) end(listener);
  rdma_destroy_event_channel(channel);
  rdma_destroy_event_channel(there);
  passed(part);
}

/* ======== Ids with a channel ======== */

/* Reasons of the InfiniBand specification. */
enum { NO_RESOURCES = 3, NO_LISTENER = 8, CONSUMER = 28 };

static int allow_reuse(struct rdma_cm_id *id) {
  int reuse = 1;
  return rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse);
}

static void ports(void) {
  begin(4);
  struct rdma_cm_id *first = listener;
  struct rdma_cm_id *second = new_id(channel);
  struct rdma_cm_id *third = new_id(channel);
  FAILS(bind_to(second, port_of(first)), EADDRINUSE);
  CHECK(bind_to(second, 0) == 0 && port_of(second) != port_of(first));
  FAILS(bind_to(second, 0), EINVAL); /* it has one */
  const uint16_t port = port_of(first);
  end(first);
  listener = first = new_id(channel);
  CHECK(allow_reuse(first) == 0 && allow_reuse(third) == 0);
  CHECK(bind_to(first, port) == 0 && bind_to(third, port) == 0);
  FAILS(rdma_listen(third, 1), EADDRINUSE);
  struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
  struct rdma_cm_id *fourth = new_id(channel);
  FAILS(rdma_bind_addr(fourth, (struct sockaddr *)&elsewhere), EADDRNOTAVAIL);
  end(second);
  end(third);
  end(fourth);
  finish("ports");
}

static void no_listener(void) {
  begin(4);
  struct rdma_cm_id *other = new_id(channel); /* bound, and does not listen */
  CHECK(bind_to(other, 0) == 0);
  struct rdma_cm_id *id = calling(port_of(other), NULL);
  CHECK(expect(channel, RDMA_CM_EVENT_REJECTED) == NO_LISTENER);
  end(id);
  end(other);
  finish("no listener");
}

static void rejected(void) {
  begin(4);
  struct rdma_cm_id *id = calling(port_of(listener), "let me in");
  struct rdma_cm_event *event = next_event(there, RDMA_CM_EVENT_CONNECT_REQUEST);
  struct rdma_cm_id *child = event->id;
  CHECK(event->listen_id == listener && child->context == there);
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
  finish("rejected");
}

/* Takes a request; returns the id that it makes. */
static struct rdma_cm_id *requested(void) {
  struct rdma_cm_event *event = next_event(there, RDMA_CM_EVENT_CONNECT_REQUEST);
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
  begin(4);
  struct rdma_cm_id *id = calling(port_of(listener), "hello");
  struct rdma_cm_id *child = requested();
  CHECK(port_of(child) == port_of(listener) && ntohs(rdma_get_dst_port(child)) == port_of(id));
  give_qp(child);
  struct rdma_conn_param param = params("welcome");
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
  finish("connected");
}

/* A program that connects its QP itself. */
static void own_qp(void) {
  begin(4);
  struct rdma_cm_id *id = resolved(port_of(listener));
  struct rdma_conn_param param = params(NULL);
  give_qp(id);
  struct ibv_qp *qp = id->qp;
  id->qp = NULL;
  param.qp_num = qp->qp_num;
  CHECK(rdma_connect(id, &param) == 0);
  struct rdma_cm_id *child = requested();
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
  finish("own QP");
}

static void limits(void) {
  begin(2);
  struct rdma_cm_id *ids[4];
  char text[58] = "";
  memset(text, 'x', sizeof text - 1);
  for (int i = 0; i < 4; i++) {
    ids[i] = resolved(port_of(listener));
    struct rdma_conn_param param = params(text); /* 57 bytes */
    give_qp(ids[i]);
    FAILS(rdma_connect(ids[i], &param), EINVAL);
    param = params(text + 1);
    param.initiator_depth = 100;
    FAILS(rdma_connect(ids[i], &param), EINVAL);
    param.initiator_depth = RDMA_MAX_INIT_DEPTH;
    CHECK(rdma_connect(ids[i], &param) == 0);
    if (i < 2) {
      struct rdma_cm_event *event = next_event(there, RDMA_CM_EVENT_CONNECT_REQUEST);
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
  CHECK(expect(there, RDMA_CM_EVENT_UNREACHABLE) == -ETIMEDOUT); /* they do not want it now */
  CHECK(expect(there, RDMA_CM_EVENT_UNREACHABLE) == -ETIMEDOUT);
  end(listener);
  passed("limits");
}

static void polled(void) {
  begin(4);
  struct pollfd fd = {.fd = there->fd, .events = POLLIN};
  struct rdma_cm_event *event;
  CHECK(fcntl(there->fd, F_SETFL, fcntl(there->fd, F_GETFL) | O_NONBLOCK) == 0);
  FAILS(rdma_get_cm_event(there, &event), EAGAIN);
  CHECK(poll(&fd, 1, 0) == 0);
  struct rdma_cm_id *id = calling(port_of(listener), NULL);
  CHECK(poll(&fd, 1, -1) == 1);
  struct rdma_cm_id *child = requested();
  CHECK(poll(&fd, 1, 0) == 0);
  FAILS(rdma_get_cm_event(there, &event), EAGAIN);
  end(child); /* unanswered: that rejects */
  CHECK(expect(channel, RDMA_CM_EVENT_REJECTED) == CONSUMER);
  end(id);
  finish("polled");
}

static void *acknowledge(void *event) {
  CHECK(rdma_ack_cm_event(event) == 0);
  return NULL;
}

/* Events of an id that is destroyed, or moved. */
static void left_over(void) {
  begin(4);
  struct rdma_event_channel *other = new_channel();
  struct pollfd fd = {.fd = there->fd, .events = POLLIN};
  struct rdma_cm_id *id = calling(port_of(listener), NULL);
  CHECK(poll(&fd, 1, -1) == 1);
  CHECK(rdma_migrate_id(listener, other) == 0);
  CHECK(poll(&fd, 1, 0) == 0 && listener->channel == other);
  fd.fd = other->fd;
  CHECK(poll(&fd, 1, 0) == 1);
  end(listener); /* with the request that waits, which it rejects */
  listener = NULL;
  CHECK(poll(&fd, 1, 0) == 0);
  struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
  CHECK(event->status == CONSUMER);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, acknowledge, event) == 0);
  end(id); /* waits for that */
  CHECK(pthread_join(thread, NULL) == 0);
  rdma_destroy_event_channel(other);
  finish("left over");
}

static void refused(void) {
  begin(4);
  struct rdma_cm_id *id;
  struct sockaddr_in group = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("224.0.0.1")};
  FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
  id = resolved(9);
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
  finish("refused");
}

static int run_managed(void) {
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

/* ======== Ids without a channel ======== */

struct server {
  struct rdma_cm_id *listener;
  bool rejects;
  pthread_t thread;
};

static struct rdma_addrinfo *found(const char *port, int flags) {
  struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = flags};
  struct rdma_addrinfo *info = NULL;
  CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &info) == 0);
  CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_family == AF_INET);
  return info;
}

static void *serve(void *argument) {
  struct server *server = argument;
  struct rdma_cm_id *id;
  struct ibv_wc wc;
  char got[32] = "";
  CHECK(rdma_get_request(server->listener, &id) == 0);
  CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
  if (server->rejects) {
    CHECK(rdma_reject(id, NULL, 0) == 0);
    rdma_destroy_ep(id);
    return NULL;
  }
  struct ibv_mr *mr = rdma_reg_msgs(id, got, sizeof got);
  CHECK(mr && rdma_post_recv(id, NULL, got, sizeof got, mr) == 0);
  CHECK(rdma_accept(id, NULL) == 0);
  CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(strcmp(got, "from an endpoint") == 0);
  rdma_disconnect(id);
  rdma_dereg_mr(mr);
  rdma_destroy_ep(id);
  return NULL;
}

static void start(struct server *server) {
  struct rdma_addrinfo *info = found("0", RAI_PASSIVE);
  struct ibv_qp_init_attr attr = qp_attr();
  CHECK(rdma_create_ep(&server->listener, info, NULL, &attr) == 0);
  CHECK(rdma_listen(server->listener, 0) == 0);
  rdma_freeaddrinfo(info);
  CHECK(pthread_create(&server->thread, NULL, serve, server) == 0);
}

static void stop(struct server *server) {
  CHECK(pthread_join(server->thread, NULL) == 0);
  rdma_destroy_ep(server->listener);
}

static struct rdma_cm_id *endpoint(uint16_t port) {
  char text[8];
  snprintf(text, sizeof text, "%u", port);
  struct rdma_addrinfo *info = found(text, 0);
  struct ibv_qp_init_attr attr = qp_attr();
  struct rdma_cm_id *id = NULL;
  CHECK(rdma_create_ep(&id, info, NULL, &attr) == 0 && id->qp);
  rdma_freeaddrinfo(info);
  return id;
}

static void connected_endpoint(void) {
  struct server server = {0};
  struct ibv_wc wc;
  char text[32] = "from an endpoint";
  start(&server);
  struct rdma_cm_id *id = endpoint(port_of(server.listener));
  struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof text);
  CHECK(mr && rdma_connect(id, NULL) == 0);
  CHECK(rdma_post_send(id, NULL, text, 17, mr, IBV_SEND_INLINE) == EINVAL || errno == EINVAL);
  CHECK(rdma_post_send(id, NULL, text, 16, mr, IBV_SEND_INLINE) == 0); /* as NICs have room for */
  CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(rdma_disconnect(id) == 0);
  rdma_dereg_mr(mr);
  rdma_destroy_ep(id);
  stop(&server);
  passed("connected");
}

static void rejected_endpoint(void) {
  struct server server = {.rejects = true};
  start(&server);
  struct rdma_cm_id *id = endpoint(port_of(server.listener));
  FAILS(rdma_connect(id, NULL), ECONNREFUSED);
  CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 28);
  rdma_destroy_ep(id);
  stop(&server);
  passed("rejected");
}

/* A shared receive queue of an id. */
static void shared(void) {
  begin(4);
  struct rdma_cm_id *id = resolved(9);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_qp_init_attr qp = qp_attr();
  CHECK(rdma_create_srq(id, NULL, &attr) == 0 && id->srq);
  CHECK(rdma_create_qp(id, NULL, &qp) == 0 && id->qp->srq == id->srq);
  rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  CHECK(!id->srq && !id->qp);
  end(id);
  finish("shared");
}

static int run_endpoints(void) {
  connected_endpoint();
  rejected_endpoint();
  shared();
  return 0;
}

/* ======== The next agent ======== */

struct both {
  struct rdma_cm_id *id;
  struct rdma_cm_id *child;
};

static struct both connect_both(void) {
  struct both made = {.id = calling(port_of(listener), NULL)};
  struct rdma_conn_param param = params(NULL);
  made.child = requested();
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

static int run_resumed(void) {
  begin(4);
  struct both first = connect_both();
  struct both second = connect_both();
  struct rdma_cm_id *asking = calling(port_of(listener), NULL);
  struct rdma_cm_id *asked = requested();
  passed("connected");
  CHECK(getchar() == '\n'); /* meanwhile there is another agent */
  CHECK(expect(channel, RDMA_CM_EVENT_UNREACHABLE) == -ECONNRESET);
  CHECK(expect(there, RDMA_CM_EVENT_UNREACHABLE) == -ECONNRESET);
  end(asking);
  end(asked);
  disconnect_both(first, first.id);
  disconnect_both(second, second.child);
  struct both third = connect_both();
  disconnect_both(third, third.id);
  finish("resumed");
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "endpoints") == 0) return run_endpoints();
  if (argc > 1 && strcmp(argv[1], "resumed") == 0) return run_resumed();
  return run_managed();
}
