/* SPDX-License-Identifier: Apache-2.0 */
/* The proofs of two hosts inside TLS, by keys and by a secret that both have (mrc/connect/proofs.py).

   Each host connects once and listens once, with the same key and secret. The attacker leads each
   connection to a host of his choice, or ends TLS himself: then he reads all, and sends what he has
   seen or can make. exchange/ has the same for any number of connections. */

#define ATTACKER 2 /* beside hosts 0 and 1; also his certificate, and a random number of his */
#define NOBODY   3

#define CONNECTS 0 /* who proves the secret */
#define LISTENS  1
#define KEY      2 /* of host 0, then of host 1 */

#define SERVER(who) (who)             /* what a proof covers of the certificate */
#define SIDE(who)   (who)             /* and of the side */
#define PROOF(who, cert, ns, nc) (((SIDE(who) * 3 + SERVER(cert)) * 3 + ns) * 3 + nc)

bool seen[108];                       /* proofs that the attacker has */
byte led[2] = { NOBODY, NOBODY };     /* where the connection of each host ends */
byte from[2] = { NOBODY, NOBODY };    /* whose connection each host listens to */
bool asked[2], asked_by_key[2];       /* proofs that the other host of a connection gets */
bool let_in[2], let_in_by_key[2];

inline any(choice) {
  if
  :: choice = 0
  :: choice = 1
  :: choice = ATTACKER
  fi
}

proctype connects(byte me) {
  byte host, known, ns, mine;
  bool by_key;
  atomic {
    any(host);
    any(known);
    ns = host; /* the random number of a host */
    if
    :: host == ATTACKER -> any(ns)
    :: host != ATTACKER && from[host] == NOBODY -> from[host] = me /* a connection has two ends */
    fi;
    led[me] = host;
    if
    :: by_key = true
    :: by_key = false
    fi;
    if
    :: by_key ->
      host == known; /* or it stops here */
      mine = PROOF(KEY + me, host, ns, me);
      asked_by_key[me] = true
    :: else -> mine = PROOF(CONNECTS, host, ns, me)
    fi;
    asked[me] = true;
    seen[mine] = seen[mine] || host == ATTACKER
  }
  atomic { /* the answer */
    if
    :: host != ATTACKER -> let_in[host]
    :: host == ATTACKER && !by_key -> seen[PROOF(LISTENS, host, ns, me)]
    :: host == ATTACKER && by_key
    fi;
    if
    :: by_key -> assert(known == ATTACKER || (host == known && let_in_by_key[known]))
    :: else -> assert(host != ATTACKER && let_in[host] && !let_in_by_key[host])
    fi
  }
}

proctype listens(byte me) {
  byte nc, who;
  bool by_key;
  atomic {
    if
    :: from[me] == 0 || from[me] == 1 -> /* TLS with a host */
      asked[from[me]];
      by_key = asked_by_key[from[me]]
    :: from[me] == NOBODY -> /* TLS with the attacker */
      from[me] = ATTACKER;
      any(nc);
      if
      :: by_key = true; any(who); if
        :: who != ATTACKER -> seen[PROOF(KEY + who, me, me, nc)]; assert(false)
        :: else /* his own key */
        fi
      :: by_key = false;
        seen[PROOF(CONNECTS, me, me, nc)];
        seen[PROOF(LISTENS, me, me, nc)] = true;
        assert(false) /* he has no secret */
      fi
    fi;
    let_in[me] = true;
    let_in_by_key[me] = by_key
  }
}

init {
  atomic {
    run connects(0);
    run connects(1);
    run listens(0);
    run listens(1)
  }
}
