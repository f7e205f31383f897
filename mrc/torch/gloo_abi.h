// SPDX-License-Identifier: Apache-2.0
// The classes of Gloo that a transport derives from, as the binary interface of torch 2.13 to 2.15
// has them: the order of virtual functions and of members is what counts. mrc/torch/build.py checks
// the installed torch against this file before anything is compiled.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace gloo {

class IStore;

// torch treats this exception as a failed connection.
struct Exception : public std::runtime_error {
  explicit Exception(const std::string &text) : std::runtime_error(text) {}
};
struct IoException : public Exception {
  explicit IoException(const std::string &text) : Exception(text) {}
};

namespace transport {

using Milliseconds = std::chrono::milliseconds;

struct RemoteKey {
  virtual ~RemoteKey() = default;
  virtual std::string serialize() const = 0;
  const int rank = 0;
  const size_t size = 0;
};

struct Buffer { // of an older interface that torch does not use
  virtual ~Buffer() = 0;
};

class Address {
public:
  virtual ~Address() = 0;
  virtual std::string str() const = 0;
  virtual std::vector<char> bytes() const = 0; // at most 192, the same number in all ranks
};

class UnboundBuffer {
public:
  UnboundBuffer(void *memory, size_t bytes) : ptr(memory), size(bytes) {}
  virtual ~UnboundBuffer() = 0;

  void *const ptr;
  const size_t size;

  // True: done; false: aborted. -1 ms: the timeout of the context.
  virtual bool waitRecv(int *rank, Milliseconds timeout) = 0;
  virtual bool waitSend(int *rank, Milliseconds timeout) = 0;
  virtual void abortWaitRecv() = 0;
  virtual void abortWaitSend() = 0;
  // `bytes` SIZE_MAX: all from `offset` on.
  virtual void send(int rank, uint64_t slot, size_t offset, size_t bytes) = 0;
  virtual void recv(int rank, uint64_t slot, size_t offset, size_t bytes) = 0;
  virtual void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) = 0;
  virtual std::unique_ptr<RemoteKey> getRemoteKey() const { throw Exception(NO_KEYS); }
  virtual void put(const RemoteKey &, uint64_t, size_t, size_t, size_t) {
    throw Exception(NO_KEYS);
  }
  virtual void get(const RemoteKey &, uint64_t, size_t, size_t, size_t) {
    throw Exception(NO_KEYS);
  }

protected:
  static constexpr const char *NO_KEYS = "mrc: remote keys are not supported";
};

class Pair {
public:
  virtual ~Pair() = 0;
  virtual const Address &address() const = 0;
  virtual void connect(const std::vector<char> &peer) = 0;
  virtual void close() = 0;
  virtual void setSync(bool sync, bool busy) = 0;
  virtual std::unique_ptr<Buffer> createSendBuffer(int slot, void *memory, size_t bytes) = 0;
  virtual std::unique_ptr<Buffer> createRecvBuffer(int slot, void *memory, size_t bytes) = 0;
  virtual bool isConnected() = 0;
  virtual void send(UnboundBuffer *buffer, uint64_t slot, size_t offset, size_t bytes) = 0;
  virtual void recv(UnboundBuffer *buffer, uint64_t slot, size_t offset, size_t bytes) = 0;
  virtual void put(UnboundBuffer *, const RemoteKey &, uint64_t, size_t, size_t, size_t) {
    throw Exception("mrc: remote keys are not supported");
  }
  virtual void get(UnboundBuffer *, const RemoteKey &, uint64_t, size_t, size_t, size_t) {
    throw Exception("mrc: remote keys are not supported");
  }

protected:
  int local_rank_ = 0; // set by Gloo
};

class Context {
public:
  Context(int rank, int size);
  virtual ~Context();

  const int rank;
  const int size;

  virtual std::unique_ptr<Pair> &getPair(int rank);
  virtual std::unique_ptr<Pair> &createPair(int rank) = 0;
  virtual void createAndConnectAllPairs(std::shared_ptr<IStore> store);
  virtual std::unique_ptr<UnboundBuffer> createUnboundBuffer(void *memory, size_t bytes) = 0;
  virtual std::unique_ptr<RemoteKey> deserializeRemoteKey(const std::string &) {
    throw Exception("mrc: remote keys are not supported");
  }

protected:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pair>> pairs_; // by rank; the constructor makes `size` empty ones
  Milliseconds timeout_;                     // Gloo sets it after the construction

private:
  void *lists_[6]; // two vectors of Gloo's own
};

class Device {
public:
  virtual ~Device() = 0;
  virtual std::string str() const = 0;
  virtual const std::string &getPCIBusID() const = 0;
  virtual int getInterfaceSpeed() const { return 0; }
  virtual bool hasGPUDirect() const { return false; }
  virtual std::shared_ptr<Context> createContext(int rank, int size) = 0;
};

} // namespace transport
} // namespace gloo
