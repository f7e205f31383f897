/* SPDX-License-Identifier: Apache-2.0 */
/* All control functions of MRC's C interface, between two hosts with SRv6 paths.
 *
 *   control serve                         the peer: a QP that gets writes
 *   control ADDRESS PLANE:USIDS...        the controller, with all EVs towards the peer
 *   control look                          whether the profiles of the former are still there
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include "pair.h"
#include "verbs/mrc_api.h"

enum { FORMAT = 13, EXPLICIT = 7, GENERATED = 8, AUTO = 9, CC = 3, TCP_PORT = 7000, MOST = 64 };

#define REFUSED(call, number) CHECK((call) == -1 && errno == (number))

static struct ibv_context *verbs;
static struct mrc_api_context *context;
static struct mrc_api_ev evs[MOST];
static int n_evs;

static void parse_evs(int n, char **words) {
  for (n_evs = 0; n_evs < n; n_evs++) {
    char *hex = strchr(words[n_evs], ':') + 1;
    evs[n_evs].port = (uint8_t)atoi(words[n_evs]);
    for (int i = 0; hex[2 * i]; i++)
      sscanf(hex + 2 * i, "%2hhx", &evs[n_evs].value[i]);
  }
}

static void query(void) {
  int supported = 0;
  struct mrc_api_ctl_device_attr attr;
  CHECK(mrc_ctl_query_device_ex(verbs, context, &attr, &supported) == 0 && supported);
  CHECK(mrc_ctl_query_device(verbs, &attr) == 0);
  CHECK(attr.format_modes == (MRC_API_FORMAT_SRV6 | MRC_API_FORMAT_UDP));
  CHECK(strcmp(attr.cc.algorithms[0], "uet-1.0-nscc") == 0 && !attr.cc.algorithms[1]);
  CHECK(attr.port_mask == 0x1e); /* ports 1 to 4 */
  uint32_t current;
  mrc_ctl_query_version(&current, NULL, NULL, NULL);
  CHECK(current == MRC_API_VERSION(1, 0, 1));
  struct mrc_api_port_attr port = {0};
  CHECK(mrc_ctl_query_port(context, 2, &port, 1) == 0 && port.enabled);
  REFUSED(mrc_ctl_query_port(context, 9, &port, 1), EINVAL);
  CHECK(mrc_ctl_modify_port(context, 2, &port, 1) == 0); /* as it is */
  port.enabled = 0;
  REFUSED(mrc_ctl_modify_port(context, 2, &port, 1), EOPNOTSUPP);
  passed("device and ports");
}

static int to_state(uint64_t id, int state) {
  struct mrc_api_evs_attr attr = {.state = state};
  return mrc_ctl_modify_ev_profile(context, id, &attr, MRC_API_PROFILE_STATE);
}

static void set_format(void) {
  struct mrc_api_format_field fields[3] = {{16}, {16}, {16}};
  struct mrc_api_format_attr attr = {.state = MRC_API_OFFLINE,
                                     .mode = MRC_API_FORMAT_STEV,
                                     .op = {.fields = fields, .n_fields = 3}};
  const int mask = MRC_API_PROFILE_STATE | MRC_API_FORMAT_MODE | MRC_API_FORMAT_OP;
  REFUSED(mrc_ctl_query_ev_fmt_profile(context, FORMAT, &attr, MRC_API_FORMAT_MODE), EINVAL);
  REFUSED(mrc_ctl_modify_ev_fmt_profile(context, FORMAT, &attr, mask), EOPNOTSUPP);
  attr.mode = MRC_API_FORMAT_SRV6;
  CHECK(mrc_ctl_modify_ev_fmt_profile(context, FORMAT, &attr, mask) == 0);
  attr.state = MRC_API_ONLINE;
  CHECK(mrc_ctl_modify_ev_fmt_profile(context, FORMAT, &attr, MRC_API_PROFILE_STATE) == 0);
  REFUSED(mrc_ctl_modify_ev_fmt_profile(context, FORMAT, &attr, MRC_API_FORMAT_MODE), EINVAL);
  struct mrc_api_format_field found[3] = {{0}};
  struct mrc_api_format_attr is = {.op = {.fields = found, .n_fields = 2}};
  REFUSED(mrc_ctl_query_ev_fmt_profile(context, FORMAT, &is, mask), E2BIG);
  CHECK(is.op.n_fields == 3); /* the room that it needs */
  CHECK(mrc_ctl_query_ev_fmt_profile(context, FORMAT, &is, mask) == 0);
  CHECK(is.state == MRC_API_ONLINE && is.mode == MRC_API_FORMAT_SRV6);
  CHECK(is.op.n_fields == 3 && found[0].bits == 16 && found[1].bits == 16);
  passed("format");
}

static void set_explicit(void) {
  struct mrc_api_evs_attr attr = {.state = MRC_API_OFFLINE,
                                  .mode = MRC_API_EVS_EXPLICIT,
                                  .format = FORMAT,
                                  .n_evs = (uint32_t)n_evs,
                                  .min_active = 2,
                                  .events = MRC_API_EV_DENIED | MRC_API_EV_GOOD};
  const int mask = MRC_API_PROFILE_STATE | MRC_API_EVS_MODE | MRC_API_EVS_FORMAT |
                   MRC_API_EVS_COUNT | MRC_API_EVS_MIN_ACTIVE | MRC_API_EVS_EVENTS;
  REFUSED(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_MODE), EINVAL);
  CHECK(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, mask) == 0);
  REFUSED(to_state(EXPLICIT, MRC_API_ONLINE), EINVAL); /* nothing is populated */
  struct mrc_api_ev_entry entries[MOST] = {0};
  for (int i = 0; i < n_evs; i++)
    entries[i].new_ev = evs[i];
  struct mrc_api_ev_entry wrong = {.new_ev = {.value = {1, 2, 3}, .port = 1}};
  attr.op.op = MRC_API_EVS_REPLACE;
  attr.op.entries = &wrong;
  attr.op.n_entries = 1;
  REFUSED(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_OP), EINVAL);
  attr.op.n_entries = 1 << 20;
  REFUSED(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_OP), E2BIG);
  attr.op.entries = entries;
  attr.op.n_entries = n_evs;
  CHECK(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_OP) == 0);
  CHECK(to_state(EXPLICIT, MRC_API_ONLINE) == 0);
  REFUSED(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_COUNT), EINVAL);
  struct mrc_api_ev_entry found[MOST] = {0};
  struct mrc_api_evs_attr is = {.op = {.op = MRC_API_EVS_QUERY, .entries = found, .n_entries = 1}};
  REFUSED(mrc_ctl_query_ev_profile(context, EXPLICIT, &is, MRC_API_EVS_OP), E2BIG);
  CHECK(is.op.n_entries == n_evs);
  CHECK(mrc_ctl_query_ev_profile(context, EXPLICIT, &is, mask | MRC_API_EVS_OP) == 0);
  CHECK(is.state == MRC_API_ONLINE && is.op.n_entries == n_evs && is.min_active == 2);
  for (int i = 0; i < n_evs; i++) {
    CHECK(memcmp(&found[i].ev, &evs[i], sizeof evs[i]) == 0);
    CHECK(found[i].state == MRC_API_EV_GOOD);
  }
  passed("explicit EVs");
}

static uint32_t field_of(const struct mrc_api_ev *ev, int place) {
  return (uint32_t)ev->value[2 * place] << 8 | ev->value[2 * place + 1];
}

/* All EVs again, from the bits in which their fields differ; and a profile of all paths. */
static void set_others(void) {
  struct mrc_api_ev_field fields[3];
  for (int field = 0; field < 3; field++) {
    const uint32_t one = field_of(&evs[0], field);
    uint32_t differ = 0;
    for (int i = 0; i < n_evs; i++)
      differ |= field_of(&evs[i], field) ^ one;
    fields[field] = (struct mrc_api_ev_field){
        .bits = 16, .initial = one, .most = (1u << __builtin_popcount(differ)) - 1, .mask = differ};
  }
  struct mrc_api_evs_attr attr = {.state = MRC_API_OFFLINE,
                                  .mode = MRC_API_EVS_GENERATED,
                                  .format = FORMAT,
                                  .fields_op = {.fields = fields, .n_fields = 3}};
  CHECK(mrc_ctl_modify_ev_profile(context, GENERATED, &attr,
                                  MRC_API_PROFILE_STATE | MRC_API_EVS_MODE | MRC_API_EVS_FORMAT |
                                      MRC_API_EVS_FIELDS_OP) == 0);
  CHECK(to_state(GENERATED, MRC_API_ONLINE) == 0);
  struct mrc_api_ev_field found[3];
  struct mrc_api_ev_entry made[MOST];
  struct mrc_api_evs_attr is = {
      .op = {.op = MRC_API_EVS_QUERY, .entries = made, .n_entries = MOST},
      .fields_op = {.op = MRC_API_FIELDS_QUERY, .fields = found, .n_fields = 3}};
  const int both = MRC_API_EVS_OP | MRC_API_EVS_FIELDS_OP;
  REFUSED(mrc_ctl_query_ev_profile(context, GENERATED, &is, both), EINVAL);
  REFUSED(mrc_ctl_modify_ev_profile(context, GENERATED, &is, both), EINVAL);
  CHECK(mrc_ctl_query_ev_profile(context, GENERATED, &is, MRC_API_EVS_OP) == 0);
  CHECK(mrc_ctl_query_ev_profile(context, GENERATED, &is, MRC_API_EVS_FIELDS_OP) == 0);
  CHECK(is.op.n_entries == n_evs && is.fields_op.n_fields == 3);
  CHECK(memcmp(found, fields, sizeof fields) == 0);
  struct mrc_api_evs_attr automatic = {.state = MRC_API_OFFLINE, .mode = MRC_API_EVS_AUTO};
  CHECK(mrc_ctl_modify_ev_profile(context, AUTO, &automatic,
                                  MRC_API_PROFILE_STATE | MRC_API_EVS_MODE) == 0);
  CHECK(to_state(AUTO, MRC_API_ONLINE) == 0);
  CHECK(to_state(AUTO, MRC_API_OFFLINE) == 0 && to_state(AUTO, MRC_API_INIT) == 0);
  REFUSED(to_state(AUTO, MRC_API_ONLINE), EINVAL); /* it is gone */
  passed("other EVs");
}

static void set_cc(void) {
  struct mrc_api_nscc config = {.base_rtt_ns = 50000, .gamma = 0.5f, .max_cwnd = 1 << 20}, is = {0};
  struct mrc_api_cc_attr attr = {.state = MRC_API_OFFLINE, .algorithm = "cubic", .config = &config};
  const int mask = MRC_API_PROFILE_STATE | MRC_API_CC_ALGORITHM | MRC_API_CC_CONFIG;
  REFUSED(mrc_ctl_modify_cc_profile(context, CC, &attr, mask), EOPNOTSUPP);
  attr.algorithm = "uet-1.0-nscc";
  CHECK(mrc_ctl_modify_cc_profile(context, CC, &attr, mask) == 0);
  attr.state = MRC_API_ONLINE;
  CHECK(mrc_ctl_modify_cc_profile(context, CC, &attr, MRC_API_PROFILE_STATE) == 0);
  struct mrc_api_cc_attr found = {.config = &is};
  CHECK(mrc_ctl_query_cc_profile(context, CC, &found, mask) == 0);
  CHECK(found.state == MRC_API_ONLINE && strcmp(found.algorithm, "uet-1.0-nscc") == 0);
  CHECK(is.base_rtt_ns == 50000 && is.gamma == 0.5f && is.max_cwnd == 1 << 20);
  passed("congestion control");
}

static void probe(const union ibv_gid *to) {
  struct mrc_api_request requests[MOST] = {0};
  struct mrc_api_answer answers[MOST];
  int n = 0;
  for (int i = 0; i < n_evs; i++)
    requests[i] = (struct mrc_api_request){
        .id = (uint16_t)(100 + i), .dgid = *to, .format = MRC_API_FORMAT_SRV6, .ev = evs[i]};
  CHECK(mrc_ctl_ep_batch_send_wait(context, 0, MRC_API_PROBE, requests, n_evs, UINT32_MAX, answers,
                                   &n) == 0);
  CHECK(n == n_evs);
  uint64_t seen = 0;
  for (int i = 0; i < n; i++) {
    CHECK(answers[i].id >= 100 && answers[i].id < 100 + n_evs && answers[i].rtt_ns > 0);
    CHECK(answers[i].port == evs[answers[i].id - 100].port);
    seen |= 1ull << (answers[i].id - 100);
  }
  CHECK(seen == (1ull << n_evs) - 1);
  REFUSED(mrc_ctl_ep_batch_send_wait(context, 0, MRC_API_PORT_STATUS, requests, 1, 1000000u,
                                     answers, &n),
          EOPNOTSUPP);
  passed("probes");
}

static int meet(const char *address) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (address) {
    CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
  }
  CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0);
  CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
  passed("listens");
  return accept(fd, NULL, NULL);
}

static void serve(void) {
  char byte;
  const int fd = meet(NULL);
  struct end end = make_end(verbs, 64);
  const struct place ours = place_of(&end), peer = swap_places(fd, &ours);
  join(&end, &peer);
  CHECK(read(fd, &byte, 1) == 0); /* until the peer ends */
}

static void set_state(const struct mrc_api_ev *ev, uint32_t state) {
  struct mrc_api_ev_entry entry = {.ev = *ev, .state = state};
  struct mrc_api_evs_attr attr = {
      .op = {.op = MRC_API_EVS_MODIFY_STATE, .entries = &entry, .n_entries = 1}};
  CHECK(mrc_ctl_modify_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_OP) == 0);
  attr.op.op = MRC_API_EVS_QUERY_STATE;
  CHECK(mrc_ctl_query_ev_profile(context, EXPLICIT, &attr, MRC_API_EVS_OP) == 0);
  CHECK(entry.state == state);
}

static void take_event(struct mrc_api_channel *channel, struct mrc_api_cq *cq,
                       const struct mrc_api_ev *ev, uint32_t state) {
  struct mrc_api_ev_event event;
  struct mrc_api_cq *told;
  void *cq_context;
  int fd;
  CHECK(mrc_get_comp_channel_fd(channel, &fd) == 0);
  CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_SECONDS * 1000) == 1);
  CHECK(mrc_get_cq_event(channel, &told, &cq_context) == 0 && told == cq);
  mrc_ack_cq_events(told, 1);
  CHECK(mrc_ctl_poll_ev_event(cq, 1, &event) == 1);
  CHECK(event.profile == EXPLICIT && event.dropped == 0 && event.state == state);
  CHECK(memcmp(&event.ev, ev, sizeof *ev) == 0);
}

/* A QP of the profile: what is denied is told. */
static void use(const char *address) {
  struct mrc_api_channel *channel;
  CHECK(mrc_create_comp_channel(context, &channel) == 0);
  struct mrc_api_cq *cq = mrc_ctl_create_ev_event_cq(context, 16, NULL, channel, 0);
  CHECK(cq && mrc_req_notify_cq(cq, 0) == 0);
  const int fd = meet(address);
  struct end end = make_end(verbs, 64);
  const struct place ours = place_of(&end), peer = swap_places(fd, &ours);
  struct mrc_api_qp_attr api = {.ev_profile = EXPLICIT, .cc_profile = CC};
  CHECK(mrc_modify_qp((struct mrc_api_qp *)end.qp, NULL, 0, &api,
                      MRC_API_QP_EV_PROFILE | MRC_API_QP_CC_PROFILE) == 0);
  join(&end, &peer);
  write_text(&end, &peer, "with a profile");
  probe(&peer.gid);
  REFUSED(to_state(EXPLICIT, MRC_API_OFFLINE) == 0 ? to_state(EXPLICIT, MRC_API_INIT) : 0, EBUSY);
  CHECK(to_state(EXPLICIT, MRC_API_ONLINE) == 0);
  set_state(&evs[1], MRC_API_EV_DENIED);
  take_event(channel, cq, &evs[1], MRC_API_EV_DENIED);
  CHECK(mrc_req_notify_cq(cq, 0) == 0);
  set_state(&evs[1], MRC_API_EV_GOOD);
  take_event(channel, cq, &evs[1], MRC_API_EV_GOOD);
  CHECK(mrc_destroy_cq(cq) == 0 && mrc_destroy_comp_channel(channel) == 0);
  CHECK(ibv_destroy_qp(end.qp) == 0);
  passed("events");
}

/* A later program sees what was set up. */
static void look(void) {
  struct mrc_api_ev_entry found[MOST];
  struct mrc_api_evs_attr attr = {
      .op = {.op = MRC_API_EVS_QUERY, .entries = found, .n_entries = MOST}};
  CHECK(mrc_ctl_query_ev_profile(context, EXPLICIT, &attr,
                                 MRC_API_PROFILE_STATE | MRC_API_EVS_COUNT | MRC_API_EVS_OP) == 0);
  CHECK(attr.state == MRC_API_ONLINE && attr.n_evs > 0 && attr.op.n_entries == (int)attr.n_evs);
  passed("still there");
}

int main(int argc, char **argv) {
  verbs = open_first();
  context = mrc_create_context(verbs, NULL);
  CHECK(argc > 1 && context);
  if (strcmp(argv[1], "serve") == 0) {
    serve();
  } else if (strcmp(argv[1], "look") == 0) {
    look();
  } else {
    parse_evs(argc - 2, argv + 2);
    query();
    set_format();
    set_explicit();
    set_others();
    set_cc();
    use(argv[1]);
  }
  CHECK(mrc_destroy_context(context) == 0);
  return 0;
}
