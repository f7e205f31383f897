// SPDX-License-Identifier: Apache-2.0
// A transport for the Gloo inside torch. It links against nothing of mrc: Python hands over a table
// of functions (struct mrc_gloo_calls), which do the work.
//
// Threads: Gloo's threads post operations to the engine and wait for them; `sink` runs on mrc's
// datapath thread. Python connects and closes. No function is called with `lock_` held.
#include "gloo_abi.h"

#include <c10/util/Registry.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <random>
#include <set>
#include <shared_mutex>
#include <unordered_map>

namespace c10d {
// Declared with default visibility: the registry lives in libtorch_cpu.
c10::Registry<std::string, std::shared_ptr<gloo::transport::Device>, const std::string &,
              const std::string &, bool> *
GlooDeviceRegistry();
} // namespace c10d

namespace {

using gloo::IoException;
using gloo::transport::Milliseconds;

constexpr size_t ADDRESS_BYTES = 160; // 4 of the space, the rest from Python
constexpr size_t TOKEN_BYTES = 16;    // of Python's address: its first bytes, which are random
constexpr size_t REASON_BYTES = ADDRESS_BYTES - sizeof(uint32_t) - TOKEN_BYTES;
constexpr size_t TEXT_BYTES = 512;
constexpr uint32_t ANY = UINT32_MAX;
enum : uint8_t { SEND = 0, RECV = 1 };

} // namespace

extern "C" {

// As in csrc/msg/messages.h; mrc/torch/transport.py compares their sizes.
struct mrc_msg_post {
  uint64_t cookie, address, bytes, tag, ignore;
  uint32_t space, peer;
  uint8_t kind, exact, claim, delivered;
  uint32_t data;
  uint64_t least;
};

struct mrc_msg_done {
  uint64_t cookie, bytes, tag;
  uint32_t space, peer;
  int32_t result;
  uint8_t kind, goes_on, reserved[2];
  uint32_t data, reserved2;
  uint64_t address;
};

// The engine's functions, for any thread; none of them waits for Python.
struct mrc_gloo_engine {
  void *ctx;
  int (*space)(void *ctx, uint32_t space, void (*sink)(void *user, const struct mrc_msg_done *),
               void *user);
  int (*close_space)(void *ctx, uint32_t space);
  int (*post)(void *ctx, const struct mrc_msg_post *posts, int n);
  int (*cancel)(void *ctx, uint32_t space, uint64_t cookie);
};

// The functions of Python. Those that return a value return -1 and a text if they fail.
struct mrc_gloo_calls {
  // Fills the address of this process, and opens the engine (mrc_gloo_attach) before that.
  int (*address)(char *out, uint32_t bytes, char *text, uint32_t room);
  // A group begins. `user` is passed to mrc_gloo_lost.
  int (*open)(uint32_t space, void *user, char *text, uint32_t room);
  // Begins to connect to a rank.
  int (*connect)(uint32_t space, int rank, const char *address, uint32_t bytes, char *text,
                 uint32_t room);
  // Waits until all ranks of the space are connected; the numbers of their peers by rank.
  int (*ready)(uint32_t space, uint32_t timeout_ms, uint32_t *peers, char *text, uint32_t room);
  // The group is over, because an operation here timed out: the other ranks are told.
  void (*failed)(uint32_t space, const char *text);
  // The group has ended: no call to mrc_gloo_lost for it follows.
  void (*close)(uint32_t space);
};
}

namespace {

constexpr const char *ENDING = "mrc: this process is ending, its connections are closed";
constexpr Milliseconds CAUSE{1500}; // for Python to say why an operation has failed

mrc_gloo_calls calls;
mrc_gloo_engine engine;
std::atomic<bool> stopped{true};
std::shared_mutex engine_lock; // shared: a function of the engine runs; exclusive: it is to end

void check_running() {
  if (stopped)
    throw IoException(ENDING);
}

class Context;
std::mutex contexts_lock;
std::set<Context *> contexts; // that are alive

// Calls a function of the engine, unless the engine is closed.
template <typename Function, typename... Arguments>
int in_engine(Function function, Arguments... arguments) {
  std::shared_lock<std::shared_mutex> guard(engine_lock);
  return stopped ? -ECANCELED : function(engine.ctx, arguments...);
}

class Address : public gloo::transport::Address {
public:
  explicit Address(std::vector<char> bytes) : bytes_(std::move(bytes)) {}
  std::string str() const override { return "mrc"; }
  std::vector<char> bytes() const override { return bytes_; }

private:
  std::vector<char> bytes_;
};

class Buffer;

// What a group's threads share: operations that have not completed, and why peers are lost.
class Context final : public gloo::transport::Context,
                      public std::enable_shared_from_this<Context> {
public:
  Context(int rank, int size) : gloo::transport::Context(rank, size), peers_(size, ANY) {
    if (rank == 0)
      space_ = std::random_device{}();
    std::lock_guard<std::mutex> guard(contexts_lock);
    contexts.insert(this);
  }
  ~Context() override {
    {
      std::lock_guard<std::mutex> guard(contexts_lock);
      contexts.erase(this);
    }
    if (!opened_ || stopped)
      return;
    calls.close(space_);
    in_engine(engine.close_space, space_); // all buffers are gone, and with them all operations
  }

  std::unique_ptr<gloo::transport::Pair> &createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *memory,
                                                                      size_t bytes) override;

  const std::vector<char> &address();
  Milliseconds timeout() const { return timeout_; }
  void connect(int rank, const std::vector<char> &address);
  void post(Buffer *buffer, uint8_t kind, int rank, uint64_t slot, size_t offset, size_t bytes);
  bool wait(Buffer *buffer, uint8_t kind, int *rank, Milliseconds timeout);
  void abort(Buffer *buffer, uint8_t kind);
  void forget(Buffer *buffer);
  void done(const mrc_msg_done &one);
  void lost(uint32_t peer, const char *text, bool everything);
  void give_up(const std::string &text);
  void fail_all(const std::string &text); // with the lock held

private:
  struct Operation {
    Buffer *buffer;
    uint8_t kind;
  };

  void open();
  int rank_of(uint32_t peer) const;
  std::vector<uint64_t> cookies(Buffer *buffer) const;
  std::string explain(std::unique_lock<std::mutex> &guard, uint32_t peer, int result);

  uint32_t space_ = 0;
  bool opened_ = false;
  std::vector<char> address_;
  std::string refusal_; // why this process has no address: the other ranks get it in place of one
  std::vector<uint32_t> peers_; // by rank
  std::mutex lock_;             // the rest
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, Operation> running_;
  std::unordered_map<uint32_t, std::string> losses_; // by peer
  std::string failure_;                              // of the whole group
  std::condition_variable told_;                     // losses_ or failure_ has changed
};

void sink(void *user, const mrc_msg_done *one) { static_cast<Context *>(user)->done(*one); }

class Buffer final : public gloo::transport::UnboundBuffer {
public:
  Buffer(std::shared_ptr<Context> context, void *memory, size_t bytes)
      : gloo::transport::UnboundBuffer(memory, bytes), context_(std::move(context)) {}
  ~Buffer() override { context_->forget(this); }

  bool waitRecv(int *rank, Milliseconds timeout) override {
    return context_->wait(this, RECV, rank, timeout);
  }
  bool waitSend(int *rank, Milliseconds timeout) override {
    return context_->wait(this, SEND, rank, timeout);
  }
  void abortWaitRecv() override { context_->abort(this, RECV); }
  void abortWaitSend() override { context_->abort(this, SEND); }
  void send(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    context_->post(this, SEND, rank, slot, offset, bytes);
  }
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    context_->post(this, RECV, rank, slot, offset, bytes);
  }
  void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) override {
    if (ranks.size() == 1)
      return recv(ranks[0], slot, offset, bytes);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    size_t others = 0;
    for (int rank : ranks)
      others += rank != context_->rank;
    if (others + 1 < size_t(context_->size))
      throw gloo::Exception("mrc: recv from several ranks must name one rank, or all others");
    context_->post(this, RECV, -1, slot, offset, bytes);
  }

  struct Side { // of sends, of receives; guarded by the context
    int completed = 0;
    int rank = -1; // of the last completion
    bool aborted = false;
    int result = 0; // negative: an operation has failed, with `peer`
    uint32_t peer = ANY;
  };
  Side sides[2];
  std::condition_variable changed;

private:
  std::shared_ptr<Context> context_;
};

class Pair final : public gloo::transport::Pair {
public:
  Pair(Context *context, int rank)
      : context_(context), rank_(rank), address_(context->address()) {}
  const gloo::transport::Address &address() const override { return address_; }
  void connect(const std::vector<char> &peer) override {
    context_->connect(rank_, peer);
    connected_ = true;
  }
  void close() override {}
  void setSync(bool, bool) override {}
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void *, size_t) override {
    throw gloo::Exception("mrc: bound buffers are not supported");
  }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void *, size_t) override {
    throw gloo::Exception("mrc: bound buffers are not supported");
  }
  bool isConnected() override { return connected_; }
  void send(gloo::transport::UnboundBuffer *buffer, uint64_t slot, size_t offset,
            size_t bytes) override {
    buffer->send(rank_, slot, offset, bytes);
  }
  void recv(gloo::transport::UnboundBuffer *buffer, uint64_t slot, size_t offset,
            size_t bytes) override {
    buffer->recv(rank_, slot, offset, bytes);
  }

private:
  Context *context_; // owns this
  int rank_;
  Address address_;
  bool connected_ = false;
};

class Device final : public gloo::transport::Device {
public:
  std::string str() const override { return "mrc"; }
  const std::string &getPCIBusID() const override { return no_bus_; }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
    check_running();
    return std::make_shared<Context>(rank, size);
  }

private:
  std::string no_bus_;
};

std::unique_ptr<gloo::transport::Pair> &Context::createPair(int rank) {
  pairs_.at(rank).reset(new Pair(this, rank));
  return pairs_[rank];
}

std::unique_ptr<gloo::transport::UnboundBuffer> Context::createUnboundBuffer(void *memory,
                                                                             size_t bytes) {
  return std::make_unique<Buffer>(shared_from_this(), memory, bytes);
}

// A process that cannot open its sockets must not let the others wait for it: they read the reason
// where they look for the address.
const std::vector<char> &Context::address() {
  if (!address_.empty())
    return address_;
  check_running();
  address_.resize(ADDRESS_BYTES);
  char text[TEXT_BYTES] = "";
  char *own = address_.data() + sizeof space_;
  std::memcpy(address_.data(), &space_, sizeof space_);
  if (calls.address(own, ADDRESS_BYTES - sizeof space_, text, sizeof text)) {
    refusal_ = text;
    std::memset(own, 0, ADDRESS_BYTES - sizeof space_);
    refusal_.copy(own + TOKEN_BYTES, REASON_BYTES, std::strlen("mrc: "));
  }
  return address_;
}

// The reason in place of an address; empty: there is an address.
std::string refusal_in(const std::vector<char> &address) {
  const char *own = address.data() + sizeof(uint32_t);
  bool random = std::any_of(own, own + TOKEN_BYTES, [](char byte) { return byte != 0; });
  return random ? "" : std::string(own + TOKEN_BYTES, strnlen(own + TOKEN_BYTES, REASON_BYTES));
}

// Rank 0 chooses the number of the space, and its address tells the others.
void Context::open() {
  char text[TEXT_BYTES] = "";
  if (calls.open(space_, this, text, sizeof text))
    throw IoException(text);
  int result = in_engine(engine.space, space_, sink, static_cast<void *>(this));
  if (result) {
    calls.close(space_);
    throw IoException("mrc: cannot open a group: " + std::string(std::strerror(-result)));
  }
  opened_ = true;
}

// Gloo connects the pairs in the order of their ranks, so rank 0 comes first. All connections are
// set up at the same time; the last call waits for them.
void Context::connect(int rank, const std::vector<char> &address) {
  check_running();
  if (address.size() != ADDRESS_BYTES)
    throw IoException("mrc: rank " + std::to_string(rank) +
                      " uses another transport: set GLOO_DEVICE_TRANSPORT=MRC in all ranks");
  if (!refusal_.empty())
    throw IoException(refusal_);
  std::string theirs = refusal_in(address);
  if (!theirs.empty())
    throw IoException("mrc: rank " + std::to_string(rank) + ": " + theirs);
  if (rank == 0)
    std::memcpy(&space_, address.data(), sizeof space_);
  if (!opened_)
    open();
  char text[TEXT_BYTES] = "";
  if (calls.connect(space_, rank, address.data() + sizeof space_, ADDRESS_BYTES - sizeof space_,
                    text, sizeof text))
    throw IoException(text);
  bool last = rank == (this->rank == size - 1 ? size - 2 : size - 1);
  if (last && calls.ready(space_, timeout_.count(), peers_.data(), text, sizeof text))
    throw IoException(text);
}

void Context::post(Buffer *buffer, uint8_t kind, int rank, uint64_t slot, size_t offset,
                   size_t bytes) {
  check_running();
  if (offset > buffer->size)
    throw gloo::Exception("mrc: the offset is not inside the buffer");
  if (bytes == SIZE_MAX)
    bytes = buffer->size - offset;
  if (bytes > buffer->size - offset)
    throw gloo::Exception("mrc: the range is not inside the buffer");
  mrc_msg_post post = {};
  {
    std::lock_guard<std::mutex> guard(lock_);
    if (!failure_.empty())
      throw IoException(failure_);
    post.cookie = next_++;
    running_[post.cookie] = {buffer, kind};
  }
  post.address = reinterpret_cast<uint64_t>(buffer->ptr) + offset;
  post.bytes = bytes;
  post.tag = slot;
  post.space = space_;
  post.peer = rank < 0 ? ANY : peers_.at(rank);
  post.kind = kind;
  post.exact = 1;
  int result = in_engine(engine.post, static_cast<const mrc_msg_post *>(&post), 1);
  if (result) {
    std::lock_guard<std::mutex> guard(lock_);
    running_.erase(post.cookie);
    throw IoException("mrc: cannot post: " + std::string(std::strerror(-result)));
  }
}

bool Context::wait(Buffer *buffer, uint8_t kind, int *rank, Milliseconds timeout) {
  Buffer::Side &side = buffer->sides[kind];
  std::unique_lock<std::mutex> guard(lock_);
  if (timeout < Milliseconds(0))
    timeout = timeout_;
  bool over = buffer->changed.wait_for(guard, timeout, [&] {
    return side.completed > 0 || side.aborted || side.result || !failure_.empty() || stopped;
  });
  if (side.completed > 0) {
    side.completed--;
    if (rank)
      *rank = side.rank;
    return true;
  }
  if (side.aborted) {
    side.aborted = false;
    return false;
  }
  if (over)
    throw IoException(explain(guard, side.peer, side.result));
  guard.unlock();
  std::string text = "timed out after " + std::to_string(timeout.count()) + " ms: a " +
                     (kind == SEND ? "send" : "receive") + " did not complete";
  give_up("mrc: another operation of this group timed out, which ended the group");
  if (!stopped)
    calls.failed(space_, text.c_str());
  throw IoException("mrc: " + text);
}

// Why an operation has failed. The engine notices before Python knows the cause.
std::string Context::explain(std::unique_lock<std::mutex> &guard, uint32_t peer, int result) {
  told_.wait_for(guard, CAUSE, [&] {
    bool unclear = result == -ECONNRESET || result == -ETIMEDOUT;
    return !unclear || !failure_.empty() || losses_.count(peer) || stopped;
  });
  if (!failure_.empty())
    return failure_;
  if (losses_.count(peer))
    return losses_[peer];
  if (stopped)
    return ENDING;
  return "mrc: rank " + std::to_string(rank_of(peer)) + ": " + std::strerror(-result);
}

void Context::abort(Buffer *buffer, uint8_t kind) {
  std::lock_guard<std::mutex> guard(lock_);
  buffer->sides[kind].aborted = true;
  buffer->changed.notify_all();
}

std::vector<uint64_t> Context::cookies(Buffer *buffer) const {
  std::vector<uint64_t> found;
  for (auto &each : running_)
    if (!buffer || each.second.buffer == buffer)
      found.push_back(each.first);
  return found;
}

// The memory of a buffer goes away after this, so no operation may use it any more. The peer
// answers a cancellation without its program; if it does not, its QP fails.
void Context::forget(Buffer *buffer) {
  std::unique_lock<std::mutex> guard(lock_);
  auto rest = cookies(buffer);
  guard.unlock();
  for (uint64_t cookie : rest)
    in_engine(engine.cancel, space_, cookie);
  guard.lock();
  buffer->changed.wait(guard, [&] { return stopped || cookies(buffer).empty(); });
}

// After a timeout the ranks no longer agree on what comes next: as in Gloo, the group is over.
void Context::give_up(const std::string &text) {
  std::lock_guard<std::mutex> guard(lock_);
  fail_all(text);
}

void Context::fail_all(const std::string &text) {
  if (failure_.empty())
    failure_ = text;
  for (auto &each : running_)
    each.second.buffer->changed.notify_all();
  told_.notify_all();
}

int Context::rank_of(uint32_t peer) const {
  auto found = std::find(peers_.begin(), peers_.end(), peer);
  return found == peers_.end() ? -1 : found - peers_.begin();
}

void Context::done(const mrc_msg_done &one) {
  std::lock_guard<std::mutex> guard(lock_);
  auto found = running_.find(one.cookie);
  if (found == running_.end())
    return;
  Buffer *buffer = found->second.buffer;
  Buffer::Side &side = buffer->sides[found->second.kind];
  running_.erase(found);
  if (one.result == 0) {
    side.completed++;
    side.rank = rank_of(one.peer);
  } else {
    side.result = one.result;
    side.peer = one.peer;
  }
  buffer->changed.notify_all();
}

void Context::lost(uint32_t peer, const char *text, bool everything) {
  std::lock_guard<std::mutex> guard(lock_);
  std::string full = std::string("mrc: ") + text;
  losses_.emplace(peer, full);
  if (everything)
    fail_all(full);
  told_.notify_all();
}

std::shared_ptr<gloo::transport::Device> make_device(const std::string &, const std::string &,
                                                     bool) {
  return std::make_shared<Device>();
}

// torch's own default, unless the name says mrc: so init_process_group("mrc") gets a device
// although the environment does not ask for one.
std::shared_ptr<gloo::transport::Device>
make_default(const std::string &interface, const std::string &hostname, bool lazy) {
  if (interface == "mrc")
    return std::make_shared<Device>();
  return c10d::GlooDeviceRegistry()->Create("TCP", interface, hostname, lazy);
}

} // namespace

extern "C" {

// Registers the transport. 0, or -1 if torch has no TCP transport to stand in for.
int mrc_gloo_register(const mrc_gloo_calls *table, uint32_t bytes) {
  if (bytes != sizeof calls)
    return -1;
  auto *registry = c10d::GlooDeviceRegistry();
  if (!registry->Has("TCP") || registry->Has("MRC"))
    return -1;
  calls = *table;
  registry->Register("MRC", make_device);
  registry->Register("LINUX", make_default, c10::REGISTRY_PREFERRED);
  stopped = false;
  return 0;
}

// The engine is open. Called before `address` returns.
int mrc_gloo_attach(const mrc_gloo_engine *opened, uint32_t bytes, uint32_t post_bytes,
                    uint32_t done_bytes) {
  if (bytes != sizeof engine || post_bytes != sizeof(mrc_msg_post) ||
      done_bytes != sizeof(mrc_msg_done))
    return -1;
  engine = *opened;
  return 0;
}

// Why a peer is lost, and with it the operations that name it, or the whole group (`everything`).
// `text` names the ranks.
void mrc_gloo_lost(void *user, uint32_t peer, const char *text, int everything) {
  static_cast<Context *>(user)->lost(peer, text, everything != 0);
}

// No function of Python or of the engine is called after this.
void mrc_gloo_stop(void) {
  {
    std::unique_lock<std::shared_mutex> guard(engine_lock);
    stopped = true;
  }
  std::lock_guard<std::mutex> guard(contexts_lock);
  for (Context *each : contexts)
    each->give_up(ENDING); // wakes the threads that wait
}
}
