// What a streamed write costs the server, at one stream and at 256 with 40 writes a second each: CPU time of
// all its threads, time in write(), and how long the writes of one round take to reach their clients. The
// clients are a process of their own, so that their CPU time does not count.
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "server/http_server.h"

namespace quire::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

struct Load {
  std::size_t streams;
  int rounds;  // each writes once to every stream
  std::chrono::microseconds pause;
};

// With "data: " and a time before it, about a chunk of a chat completion.
const std::string kRest = " " + std::string(180, 'x') + "\n\n";

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

int connect_and_ask(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  QUIRE_CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const std::string request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
  QUIRE_CHECK(::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  return fd;
}

// Reads until all streams have ended. Every event carries its round's start: prints the mean delay.
void run_clients(std::uint16_t port, const Load& load) {
  const int poll = ::epoll_create1(0);
  for (std::size_t i = 0; i < load.streams; ++i) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = connect_and_ask(port)}};
    QUIRE_CHECK(::epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
  }
  double delays = 0, worst = 0;
  std::size_t events_read = 0;
  for (std::size_t open = load.streams; open > 0;) {
    epoll_event events[64];
    const int n = ::epoll_wait(poll, events, 64, -1);
    for (int i = 0; i < n; ++i) {
      char buffer[16384];
      const ssize_t size = ::recv(events[i].data.fd, buffer, sizeof buffer - 1, 0);
      if (size <= 0) {
        ::close(events[i].data.fd);
        --open;
        continue;
      }
      buffer[size] = 0;
      const char* stamp = std::strstr(buffer, "data: ");
      if (stamp == nullptr) continue;
      const double delay = static_cast<double>(now_ns() - std::strtoll(stamp + 6, nullptr, 10)) * 1e-3;
      delays += delay;
      worst = std::max(worst, delay);
      ++events_read;
    }
  }
  print_text(stdout, "  delivered after {:.0f} us on average, {:.0f} us at worst\n",
             delays / static_cast<double>(events_read), worst);
}

double cpu_us(clockid_t whose) {
  timespec time{};
  ::clock_gettime(whose, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// The writer's CPU time counts only within its writes.
void write_rounds(const std::vector<std::shared_ptr<HttpResponder>>& streams, const Load& load) {
  const double process = cpu_us(CLOCK_PROCESS_CPUTIME_ID), thread = cpu_us(CLOCK_THREAD_CPUTIME_ID);
  const Clock::time_point begin = Clock::now();
  duration<double, std::micro> in_write{};
  double writing = 0;
  for (int round = 0; round < load.rounds; ++round) {
    std::this_thread::sleep_until(begin + round * load.pause);
    const std::string stamp = std::to_string(now_ns());
    const Clock::time_point start = Clock::now();
    const double start_cpu = cpu_us(CLOCK_THREAD_CPUTIME_ID);
    for (const auto& stream : streams) stream->write("data: " + stamp + kRest);
    writing += cpu_us(CLOCK_THREAD_CPUTIME_ID) - start_cpu;
    in_write += Clock::now() - start;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // what is under way counts, too
  const double writer = cpu_us(CLOCK_THREAD_CPUTIME_ID) - thread;
  const double used = cpu_us(CLOCK_PROCESS_CPUTIME_ID) - process - writer + writing;
  const double events = static_cast<double>(load.rounds) * static_cast<double>(load.streams);
  print_text(
      stdout,
      "{} streams, {:.0f} writes/s: each takes {:.1f} us of CPU and {:.1f} us in write(); {:.2f} cores\n",
      load.streams, 1e6 * static_cast<double>(load.streams) / static_cast<double>(load.pause.count()),
      used / events, in_write.count() / events,
      used / duration<double, std::micro>(Clock::now() - begin).count());
}

void run(const Load& load) {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<std::shared_ptr<HttpResponder>> streams;
  HttpServerConfig config;
  config.port = 0;
  HttpServer server(config, [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->begin(200, {{"Content-Type", "text/event-stream"}});
    const std::lock_guard lock(mutex);
    streams.push_back(std::move(responder));
    came.notify_all();
  });
  std::fflush(stdout);
  const pid_t clients = ::fork();  // they wait to be accepted; here no thread runs yet
  if (clients == 0) {
    run_clients(server.port(), load);
    std::fflush(stdout);
    ::_exit(0);
  }
  server.start();
  {
    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return streams.size() == load.streams; });
  }
  write_rounds(streams, load);
  for (const auto& stream : streams) stream->end();
  ::waitpid(clients, nullptr, 0);
}

}  // namespace
}  // namespace quire::server

int main() {
  using namespace std::chrono_literals;
  quire::server::run({.streams = 1, .rounds = 1000, .pause = 5ms});
  quire::server::run({.streams = 256, .rounds = 200, .pause = 25ms});
}
