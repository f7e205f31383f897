/* SPDX-License-Identifier: Apache-2.0 */
/* Events of EVs, and a QP that has some.
 *
 *   watcher use             sets up profile 7 and connects a QP that uses it; until stdin ends
 *   watcher look ROOM       for each line N of stdin: waits for N events, then prints those in a
 *                           CQ with ROOM places: profile, port, first bytes, state and drops
 */
#include <poll.h>

#include "pair.h"
#include "verbs/mrc_api.h"

enum { PROFILE = 7, MOST = 64 };

static void say(const char *what) {
  puts(what);
  fflush(stdout);
}

static void set_up(struct mrc_api_context *context) {
  struct mrc_api_evs_attr attr = {.state = MRC_API_OFFLINE,
                                  .mode = MRC_API_EVS_AUTO,
                                  .events = MRC_API_EV_DENIED | MRC_API_EV_GOOD};
  CHECK(mrc_ctl_modify_ev_profile(context, PROFILE, &attr,
                                  MRC_API_PROFILE_STATE | MRC_API_EVS_MODE | MRC_API_EVS_EVENTS) ==
        0);
  attr.state = MRC_API_ONLINE;
  CHECK(mrc_ctl_modify_ev_profile(context, PROFILE, &attr, MRC_API_PROFILE_STATE) == 0);
}

static void use(struct ibv_context *verbs, struct mrc_api_context *context) {
  set_up(context);
  struct end a = make_end(verbs, 64), b = make_end(verbs, 64);
  struct mrc_api_qp_attr api = {.ev_profile = PROFILE};
  CHECK(mrc_modify_qp((struct mrc_api_qp *)a.qp, NULL, 0, &api, MRC_API_QP_EV_PROFILE) == 0);
  const struct place to = place_of(&b);
  join_both(&a, &b);
  write_text(&a, &to, "connected");
  printf("%u\n", a.qp->qp_num);
  fflush(stdout);
  while (getchar() != EOF)
    ;
}

struct watched {
  struct mrc_api_channel *channel;
  struct mrc_api_cq *cq;
};

static struct watched watch(struct mrc_api_context *context, int room) {
  struct watched made;
  CHECK(mrc_create_comp_channel(context, &made.channel) == 0);
  made.cq = mrc_ctl_create_ev_event_cq(context, room, NULL, made.channel, 0);
  CHECK(made.cq && mrc_req_notify_cq(made.cq, 0) == 0);
  return made;
}

/* Sleeps on the channel until `n` events have come and are taken. */
static void take(const struct watched *from, int n) {
  struct mrc_api_ev_event events[MOST];
  while (n > 0) {
    const int taken = mrc_ctl_poll_ev_event(from->cq, n < MOST ? n : MOST, events);
    CHECK(taken >= 0);
    n -= taken;
    if (taken > 0) continue;
    struct mrc_api_cq *told;
    void *cq_context;
    int fd;
    CHECK(mrc_get_comp_channel_fd(from->channel, &fd) == 0);
    CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_SECONDS * 1000) == 1);
    CHECK(mrc_get_cq_event(from->channel, &told, &cq_context) == 0 && told == from->cq);
    mrc_ack_cq_events(told, 1);
    CHECK(mrc_req_notify_cq(from->cq, 0) == 0);
  }
}

static void show(const struct watched *from) {
  struct mrc_api_ev_event events[MOST];
  const int n = mrc_ctl_poll_ev_event(from->cq, MOST, events);
  CHECK(n >= 0);
  for (int i = 0; i < n; i++)
    printf("%lu %d %02x%02x %u %u\n", (unsigned long)events[i].profile, events[i].ev.port,
           events[i].ev.value[0], events[i].ev.value[1], events[i].state, events[i].dropped);
  say("");
}

static void look(struct mrc_api_context *context, int room) {
  int n;
  const struct watched all = watch(context, MOST), few = watch(context, room);
  say("watches");
  while (scanf("%d", &n) == 1) {
    take(&all, n); /* the other CQ has had them at the same time */
    show(&few);
  }
}

int main(int argc, char **argv) {
  struct ibv_context *verbs = open_first();
  struct mrc_api_context *context = mrc_create_context(verbs, NULL);
  CHECK(context && argc > 1);
  if (strcmp(argv[1], "use") == 0)
    use(verbs, context);
  else
    look(context, atoi(argv[2]));
  return 0;
}
