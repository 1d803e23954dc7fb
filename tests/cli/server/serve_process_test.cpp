// `quire serve` as a process: what it listens on, and that it ends where a thread of it cannot.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "server/http_client.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using server::HttpClient;
using server::HttpReply;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServeProcess {
 public:
  // Starts it on any free port, and waits until it serves.
  explicit ServeProcess(std::vector<std::string> arguments) {
    std::vector<std::string> all = {QUIRE_PROGRAM, "serve", "--port",        "0",
                                    "--device",    "cpu",   "--cpu-threads", "1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    int fds[2];
    if (::pipe(fds) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(fds[1], STDERR_FILENO);
      ::close(fds[0]);
      std::vector<char*> argv;
      for (std::string& argument : all) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(QUIRE_PROGRAM, argv.data());
      ::_exit(127);
    }
    ::close(fds[1]);
    errors_ = ::fdopen(fds[0], "r");
    const std::string line = read_until("serving ");
    const std::size_t at = line.rfind("http://127.0.0.1:");
    if (at != std::string::npos) port_ = static_cast<std::uint16_t>(std::stoi(line.substr(at + 17)));
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::fclose(errors_);
  }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return port_; }
  HttpReply ask(const std::string& bytes) const {
    HttpClient client(port_);
    client.send(bytes);
    return client.read_reply();
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& headers = {}) {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // The line of standard error that has this; all of what is left where none has.
  std::string read_until(const std::string& what) {
    std::string all;
    for (char line[4096]; std::fgets(line, sizeof line, errors_) != nullptr;) {
      all += line;
      if (all.find(what) != std::string::npos) break;
    }
    return all;
  }
  int exit_code() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int thread_named(const std::string& name) const {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      if (found == name) return std::stoi(task.path().filename().string());
    }
    return 0;
  }

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
  std::FILE* errors_ = nullptr;
};

// "tcp 0100007F:1F90", of each socket of the process that waits for others: TCP that listens, and all UDP.
std::vector<std::string> listening(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes;
  for (const auto& fd : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(fd.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> found;
  for (const std::string table : {"tcp", "tcp6", "udp", "udp6", "raw", "raw6"}) {
    std::ifstream file(proc + "/net/" + table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      const bool listens = table.starts_with("tcp") ? state == "0A" : true;
      if (listens && inodes.contains(inode)) found.push_back(table + " " + local);
    }
  }
  std::ifstream file(proc + "/net/unix");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode;
    words >> number >> references >> protocol >> flags >> type >> state >> inode;
    if (flags == "00010000" && inodes.contains(inode)) found.push_back("unix " + line);  // it accepts
  }
  return found;
}

std::string loopback(std::uint16_t port) {
  char text[32];
  std::snprintf(text, sizeof text, "tcp 0100007F:%04X", port);
  return text;
}

TEST(ServeProcessTest, NothingListensButTheApiOnLoopback) {
  ServeProcess server({"--window"});
  ASSERT_NE(server.port(), 0);
  EXPECT_THAT(listening(server.pid()), ElementsAre(loopback(server.port())));
  EXPECT_EQ(server.ask(ServeProcess::post("/v1/completions", R"({"prompt": "a", "max_tokens": 3})")).status,
            200);
  EXPECT_THAT(listening(server.pid()), ElementsAre(loopback(server.port())));
}

// Where there are sockets that listen, they are found: the test above can fail.
TEST(ServeProcessTest, AnotherHostIsListenedOnWhereItIsAskedFor) {
  ServeProcess server({"--host", "127.0.0.2"});
  const std::vector<std::string> found = listening(server.pid());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], HasSubstr("tcp 0200007F:"));
}

TEST(ServeProcessTest, AStoppedOpMakesItUnhealthyAndEndsIt) {
  ServeProcess server({"--watchdog", "0.5"});
  ASSERT_NE(server.port(), 0);
  HttpClient client(server.port());
  client.send(ServeProcess::post(
      "/v1/completions", R"({"prompt": "a", "max_tokens": 900, "ignore_eos": true, "stream": true})"));
  ASSERT_FALSE(client.read_until("data: {").empty());
  const int thread = server.thread_named("quire-engine");
  ASSERT_GT(thread, 0);
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0);
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
  ASSERT_EQ(::waitpid(thread, nullptr, __WALL), thread);  // it has stopped
  const std::string rest = client.read_to_end();
  EXPECT_THAT(rest, HasSubstr("is stuck"));
  EXPECT_THAT(
      server.read_until("quire: stopping"),
      ::testing::ContainsRegex("step [0-9]+ is stuck: nothing has moved for 6 s.* op that was begun is "));
  ASSERT_EQ(::waitpid(thread, nullptr, __WALL), thread);  // it has gone, with its process
  EXPECT_EQ(server.exit_code(), 1);
}

TEST(ServeProcessTest, KeysShareWhatIsCachedOnlyWhereThatIsAskedFor) {
  const std::string body =
      R"({"prompt": "the water ran over the stones and the boy looked at the fish that swam in it", "max_tokens": 1})";
  const auto cached = [&](const ServeProcess& server, const std::string& key) {
    const HttpReply reply =
        server.ask(ServeProcess::post("/v1/completions", body, "Authorization: Bearer " + key + "\r\n"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return OrderedJson::parse(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  ServeProcess apart({"--api-key", "one", "--api-key", "two"});
  EXPECT_EQ(cached(apart, "one"), 0);
  EXPECT_EQ(cached(apart, "two"), 0);
  EXPECT_GE(cached(apart, "two"), 16);
  ServeProcess sharing({"--api-key", "one", "--api-key", "two", "--share-prefix-cache"});
  EXPECT_EQ(cached(sharing, "one"), 0);
  EXPECT_GE(cached(sharing, "two"), 16);
}

}  // namespace
}  // namespace quire
