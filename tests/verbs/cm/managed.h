/* SPDX-License-Identifier: Apache-2.0 */
/* For the programs beside this file: ids of rdma_cm, their events and QPs. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* The call fails with this errno. */
#define FAILS(call, error) CHECK((errno = 0, (call) == -1 && errno == (error)))

static inline void passed(const char *what) {
  puts(what);
  fflush(stdout);
}

static inline struct sockaddr_in address(uint16_t port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline struct rdma_event_channel *new_channel(void) {
  struct rdma_event_channel *channel = rdma_create_event_channel();
  CHECK(channel);
  return channel;
}

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel) {
  struct rdma_cm_id *id = NULL;
  CHECK(rdma_create_id(channel, &id, channel, RDMA_PS_TCP) == 0);
  return id;
}

static inline int bind_to(struct rdma_cm_id *id, uint16_t port) {
  struct sockaddr_in at = address(port);
  return rdma_bind_addr(id, (struct sockaddr *)&at);
}

static inline uint16_t port_of(struct rdma_cm_id *id) { return ntohs(rdma_get_src_port(id)); }

/* Listens at a free port. */
static inline struct rdma_cm_id *listening(struct rdma_event_channel *channel, int backlog) {
  struct rdma_cm_id *id = new_id(channel);
  CHECK(bind_to(id, 0) == 0 && port_of(id) != 0);
  CHECK(rdma_listen(id, backlog) == 0);
  return id;
}

/* The next event of the channel, which has to be of this type. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel,
                                               enum rdma_cm_event_type type) {
  struct rdma_cm_event *event = NULL;
  CHECK(rdma_get_cm_event(channel, &event) == 0);
  if (event->event != type)
    fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
  CHECK(event->event == type);
  return event;
}

/* The same for one that has nothing more to say. Returns its status. */
static inline int expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type) {
  struct rdma_cm_event *event = next_event(channel, type);
  const int status = event->status;
  CHECK(rdma_ack_cm_event(event) == 0);
  return status;
}

/* An id whose route to this port is known. */
static inline struct rdma_cm_id *resolved(struct rdma_event_channel *channel, uint16_t port) {
  struct rdma_cm_id *id = new_id(channel);
  struct sockaddr_in to = address(port);
  CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && id->verbs);
  CHECK(rdma_resolve_route(id, 1000) == 0);
  CHECK(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0 && id->route.num_paths == 1);
  return id;
}

static inline struct ibv_qp_init_attr qp_attr(void) {
  return (struct ibv_qp_init_attr){
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC,
      .sq_sig_all = 1};
}

static inline void give_qp(struct rdma_cm_id *id) {
  struct ibv_qp_init_attr attr = qp_attr();
  CHECK(rdma_create_qp(id, NULL, &attr) == 0 && id->qp && id->pd && id->send_cq && id->recv_cq);
}

static inline struct rdma_conn_param params(const char *text) {
  return (struct rdma_conn_param){.private_data = text,
                                  .private_data_len = text ? (uint8_t)strlen(text) : 0,
                                  .responder_resources = 1,
                                  .initiator_depth = 2,
                                  .retry_count = 7,
                                  .rnr_retry_count = 7};
}

static inline void end(struct rdma_cm_id *id) {
  if (id->qp) rdma_destroy_qp(id);
  CHECK(rdma_destroy_id(id) == 0);
}
