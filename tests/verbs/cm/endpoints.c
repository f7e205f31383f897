/* SPDX-License-Identifier: Apache-2.0 */
/* Ids without a channel, whose calls wait: rdma_create_ep and what belongs to it. */
#include "managed.h"

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

static void connected(void) {
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

static void rejected(void) {
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
  struct rdma_event_channel *channel = new_channel();
  struct rdma_cm_id *id = resolved(channel, 9);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_qp_init_attr qp = qp_attr();
  CHECK(rdma_create_srq(id, NULL, &attr) == 0 && id->srq);
  CHECK(rdma_create_qp(id, NULL, &qp) == 0 && id->qp->srq == id->srq);
  rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  CHECK(!id->srq && !id->qp);
  end(id);
  rdma_destroy_event_channel(channel);
  passed("shared");
}

int main(void) {
  connected();
  rejected();
  shared();
  return 0;
}
