/* SPDX-License-Identifier: Apache-2.0 */
#include "core/qp.h"

#include <errno.h>

#include "check.h"
#include "core/base.h"

static struct mrc_peer_source source(uint32_t address, uint16_t sport) {
  struct mrc_peer_source made = {.sport = sport};
  memcpy(made.address + 12, &address, sizeof address);
  return made;
}

static struct mrc_peer *find(const struct mrc_peers *peers, struct mrc_peer_source wanted) {
  const uint32_t entry = mrc_peers_find(peers, wanted.address, wanted.sport, 0);
  return entry == 0 ? NULL : mrc_peers_at(peers, entry);
}

static bool knows(const struct mrc_peers *peers, struct mrc_peer *peer,
                  struct mrc_peer_source from) {
  return mrc_peer_knows(peers, peer, from.address, from.sport);
}

static int n_claims(const struct mrc_peers *peers, struct mrc_peer_source wanted) {
  int n = 0;
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, wanted.address, wanted.sport, entry)) != 0)
    n++;
  return n;
}

/* The order of sources and repetitions make no difference; an additional or missing source does. */
TEST(test_join__the_same_set_is_the_same_peer) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2), c = source(2, 1);
  const struct {
    struct mrc_peer_source sources[3];
    int n;
    bool same;
  } rows[] = {
      {{a, b}, 2, true},  {{b, a}, 2, true},     {{b, a, b}, 3, true}, {{a}, 1, false},
      {{a, a}, 2, false}, {{a, b, c}, 3, false}, {{b, c}, 2, false},   {{a, c}, 2, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_peers peers;
    CHECK_EQ(mrc_peers_init(&peers, 2, 5, 1), 0);
    struct mrc_qp one = {0}, two = {0};
    CHECK_EQ(mrc_peer_join(&peers, &one, rows[0].sources, 2, 1), 0);
    CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, 1), 0);
    CHECK_EQ(one.peer == two.peer, rows[i].same);
    CHECK_PTR_EQ(two.peer->qps, rows[i].same ? &one : &two);
    CHECK_EQ(n_claims(&peers, b), rows[i].same || i == 3 || i == 4 || i == 7 ? 1 : 2);
    mrc_peer_leave(&peers, &one);
    CHECK_PTR_EQ(two.peer->qps, &two);
    CHECK_PTR_EQ(find(&peers, rows[i].sources[0]), two.peer);
    mrc_peer_leave(&peers, &two);
    CHECK_EQ(n_claims(&peers, a) + n_claims(&peers, b) + n_claims(&peers, c), 0);
    mrc_peers_free(&peers);
  }
}

/* A lookup matches the whole key and the peer: another peer's source does not match. */
TEST(test_knows__sources) {
  struct mrc_peers peers;
  CHECK_EQ(mrc_peers_init(&peers, 2, 8, 1), 0);
  struct mrc_qp qp = {0}, other = {0};
  const struct mrc_peer_source sources[] = {source(1, 1), source(1, 2), source(2, 1)};
  const struct mrc_peer_source theirs[] = {source(1, 1), source(3, 1)};
  CHECK(!knows(&peers, NULL, sources[0]));
  CHECK_EQ(mrc_peer_join(&peers, &qp, sources, 3, 1), 0);
  CHECK_EQ(mrc_peer_join(&peers, &other, theirs, 2, 1), 0);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < 3; i++)
      CHECK(knows(&peers, qp.peer, sources[i]));
  CHECK(!knows(&peers, qp.peer, source(3, 1)));
  CHECK(!knows(&peers, qp.peer, source(2, 2)));
  CHECK(knows(&peers, other.peer, source(1, 1)) && knows(&peers, other.peer, source(3, 1)));
  CHECK(!knows(&peers, other.peer, source(1, 2)));
  CHECK_PTR_EQ(find(&peers, source(2, 1)), qp.peer);
  mrc_peer_leave(&peers, &qp);
  mrc_peer_leave(&peers, &other);
  mrc_peers_free(&peers);
}

/* A source that has answered a probe belongs to that peer while the peer exists: a claim of another
   UDP port is refused, whatever its other sources are, and changes nothing. */
TEST(test_join__not_what_another_has_proved) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2), c = source(2, 1);
  const struct {
    struct mrc_peer_source sources[2];
    int n;
    uint16_t udp_port;
    int error;
  } rows[] = {
      {{a, b}, 2, 9, -EADDRINUSE},                    /* the same set */
      {{c, a}, 2, 9, -EADDRINUSE},                    /* with another source */
      {{a}, 1, 9, -EADDRINUSE},    {{c, b}, 2, 9, 0}, /* b has not answered */
      {{a, b}, 2, 1, 0},                              /* the same process */
      {{c, a}, 2, 1, 0},                              /* the same process; one port up, one down */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_peers peers;
    CHECK_EQ(mrc_peers_init(&peers, 2, 8, 1), 0);
    struct mrc_qp one = {0}, two = {0};
    CHECK_EQ(mrc_peer_join(&peers, &one, rows[4].sources, 2, 1), 0);
    CHECK(knows(&peers, one.peer, a));
    mrc_peer_prove(&peers, one.peer);
    const uint32_t entries = peers.n_entries;
    CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, rows[i].udp_port),
             rows[i].error);
    CHECK_EQ(two.peer == NULL, rows[i].error != 0);
    CHECK_EQ(two.peer == one.peer, i == 4);
    if (rows[i].error != 0) {
      CHECK_EQ(n_claims(&peers, a), 1);
      CHECK_EQ(n_claims(&peers, c), 0);
      mrc_peer_leave(&peers, &one);
      CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, rows[i].udp_port), 0);
      CHECK(peers.n_entries <= entries + 2);
    }
    mrc_peers_free(&peers);
  }
}

/* The first peer that proves a source owns it until it leaves; then the next one that proves it. */
TEST(test_prove__has_one_owner) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2);
  struct mrc_peers peers;
  CHECK_EQ(mrc_peers_init(&peers, 2, 8, 1), 0);
  struct mrc_qp one = {0}, two = {0};
  CHECK_EQ(mrc_peer_join(&peers, &one, (struct mrc_peer_source[]){a, b}, 2, 1), 0);
  CHECK_EQ(mrc_peer_join(&peers, &two, &a, 1, 1), 0);
  for (int round = 0; round < 2; round++) {
    struct mrc_peer *first = round == 0 ? one.peer : two.peer;
    CHECK(knows(&peers, first, a));
    mrc_peer_prove(&peers, first);
    int n_proved = 0;
    for (uint32_t i = 0; (i = mrc_peers_find(&peers, a.address, a.sport, i)) != 0;) {
      n_proved += peers.entries[i].proved;
      if (peers.entries[i].proved) CHECK_PTR_EQ(mrc_peers_at(&peers, i), one.peer);
    }
    CHECK_EQ(n_proved, 1);
  }
  mrc_peer_leave(&peers, &one);
  CHECK(knows(&peers, two.peer, a));
  mrc_peer_prove(&peers, two.peer);
  CHECK(peers.entries[mrc_peers_find(&peers, a.address, a.sport, 0)].proved);
  mrc_peers_free(&peers);
}

/* A peer that does not fit leaves no entries behind, and released room is used again. */
TEST(test_join__full) {
  enum { SOURCES = 256, ROOM = 2 * SOURCES };
  struct mrc_peers peers;
  struct mrc_peer_source sources[SOURCES];
  CHECK_EQ(mrc_peers_init(&peers, 8, ROOM, 1), 0);
  struct mrc_qp qps[4] = {0};
  for (int q = 0; q < 4; q++) {
    for (int i = 0; i < SOURCES; i++)
      sources[i] = source((uint32_t)q, (uint16_t)i);
    CHECK_ROW(q);
    CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, SOURCES, 1), q < 3 ? 0 : -ENOSPC);
  }
  CHECK(qps[3].peer == NULL && find(&peers, sources[0]) == NULL);
  mrc_peer_leave(&peers, &qps[1]);
  CHECK_EQ(mrc_peer_join(&peers, &qps[3], sources, SOURCES, 1), 0);
  CHECK_PTR_EQ(find(&peers, sources[SOURCES - 1]), qps[3].peer);
  CHECK_EQ(qps[3].peer->n_sources, SOURCES);
  mrc_peers_free(&peers);
}

/* Random joins and leaves, compared with a plain model of the sets. */
TEST(test_join__and_leave_at_random) {
  enum { QPS = 16, STEPS = 20000 };
  struct mrc_peers peers;
  CHECK_EQ(mrc_peers_init(&peers, QPS, QPS * 4, 1), 0);
  struct mrc_qp qps[QPS] = {0};
  uint32_t sets[QPS] = {0}; /* bit i: source i of 6; 0: it has left */
  struct mrc_prng prng = {.state = 1};
  for (int step = 0; step < STEPS; step++) {
    CHECK_ROW(step);
    const uint32_t q = mrc_prng_below(&prng, QPS);
    struct mrc_peer_source sources[6];
    if (sets[q] != 0) {
      mrc_peer_leave(&peers, &qps[q]);
      sets[q] = 0;
    } else {
      sets[q] = 1 + mrc_prng_below(&prng, 63);
      int n = 0;
      for (uint32_t i = 0; i < 6; i++)
        if (sets[q] >> i & 1) sources[n++] = source(i / 2, (uint16_t)(i % 2));
      CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, n, 1), 0);
    }
    for (uint32_t i = 0; i < QPS; i++)
      if (sets[q] != 0 && sets[i] != 0) CHECK_EQ(qps[i].peer == qps[q].peer, sets[i] == sets[q]);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < QPS; i++) {
      bool first = sets[i] & 1;
      for (uint32_t k = 0; k < i; k++)
        first &= sets[k] != sets[i];
      distinct += first;
    }
    CHECK_EQ(n_claims(&peers, source(0, 0)), distinct);
  }
  mrc_peers_free(&peers);
}

/* The table grows with the peers and still finds the earlier ones. */
TEST(test_join__grows_the_table) {
  enum { PEERS = 32, EACH = 256 };
  struct mrc_peers peers;
  CHECK_EQ(mrc_peers_init(&peers, PEERS, PEERS * EACH, 1), 0);
  CHECK(peers.room_entries < PEERS * EACH);
  static struct mrc_qp qps[PEERS];
  for (uint32_t q = 0; q < PEERS; q++) {
    struct mrc_peer_source sources[EACH];
    for (uint32_t i = 0; i < EACH; i++)
      sources[i] = source(q, (uint16_t)i);
    CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, EACH, 1), 0);
    for (uint32_t before = 0; before <= q; before++)
      CHECK_PTR_EQ(find(&peers, source(before, EACH - 1)), qps[before].peer);
  }
  CHECK_EQ(n_claims(&peers, source(0, 0)), 1);
  for (uint32_t q = 0; q < PEERS; q++)
    mrc_peer_leave(&peers, &qps[q]);
  CHECK(find(&peers, source(0, 0)) == NULL);
  mrc_peers_free(&peers);
}
