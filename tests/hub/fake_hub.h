#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"

namespace quire::testing {

inline std::string hex(const unsigned char* bytes, std::size_t size) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
  return text;
}
inline std::string sha256_of(const std::string& bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  return hex(digest, sizeof digest);
}
// What `git hash-object` prints.
inline std::string git_hash_of(const std::string& bytes) {
  const std::string blob = "blob " + std::to_string(bytes.size()) + '\0' + bytes;
  unsigned char digest[SHA_DIGEST_LENGTH];
  SHA1(reinterpret_cast<const unsigned char*>(blob.data()), blob.size(), digest);
  return hex(digest, sizeof digest);
}

struct HubRequest {
  bool at_storage = false;  // not at the hub itself, but at the host it redirects to
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;  // names in lower case

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  bool is(std::string_view a_method, std::string_view part) const {
    return method == a_method && target.find(part) != std::string::npos;
  }
};

// One answer to one request, byte by byte as a test wants it. The connection closes after it.
class HubConnection {
 public:
  explicit HubConnection(int fd) : fd_(fd) {}

  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  bool answer(int status, const std::string& headers, std::string_view body = {}) const {
    return head(status, headers, body.size()) && send(body);
  }
  bool head(int status, const std::string& headers, std::size_t length) const {
    return send("HTTP/1.1 " + std::to_string(status) + " Some\r\nConnection: close\r\nContent-Length: " +
                std::to_string(length) + "\r\n" + headers + "\r\n");
  }
  // Until the client goes.
  void hold() const {
    char byte = 0;
    while (::recv(fd_, &byte, 1, 0) > 0) {
    }
  }

 private:
  int fd_;
};

// A port with a thread for each connection.
class HubPort {
 public:
  using Handler = std::function<void(const HubConnection&, HubRequest)>;

  explicit HubPort(Handler handler) : handler_(std::move(handler)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = own_address();
    socklen_t size = sizeof address;
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd_, 64) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("cannot listen");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::jthread([this](const std::stop_token& stop) { accept_all(stop); });
  }
  ~HubPort() {
    acceptor_ = {};
    for (const int fd : clients_) ::shutdown(fd, SHUT_RDWR);
    threads_.clear();
    for (const int fd : clients_) ::close(fd);
    ::close(fd_);
  }
  HubPort(const HubPort&) = delete;
  HubPort& operator=(const HubPort&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // Until what has come so far, also from clients that have gone, is answered.
  void settle() {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);  // it is accepted after all others
    const sockaddr_in address = own_address();
    char byte = 0;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::shutdown(fd, SHUT_WR) == 0) {
      while (::recv(fd, &byte, 1, 0) > 0) {
      }
    }
    ::close(fd);
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return num_active_ == 0; });
  }

 private:
  sockaddr_in own_address() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port_);
    return address;
  }

  void accept_all(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd waiting{fd_, POLLIN, 0};
      if (::poll(&waiting, 1, 10) <= 0) continue;
      const int fd = ::accept(fd_, nullptr, nullptr);
      if (fd < 0) continue;
      clients_.push_back(fd);  // its number stays taken: it is closed at the end
      {
        const std::lock_guard lock(mutex_);
        ++num_active_;
      }
      threads_.emplace_back([this, fd] {
        if (auto request = read_request(fd)) handler_(HubConnection(fd), std::move(*request));
        ::shutdown(fd, SHUT_RDWR);
        const std::lock_guard lock(mutex_);
        --num_active_;
        settled_.notify_all();
      });
    }
  }

  static std::optional<HubRequest> read_request(int fd) {
    std::string text;
    for (char byte = 0; !text.ends_with("\r\n\r\n"); text += byte) {
      if (::recv(fd, &byte, 1, 0) <= 0) return std::nullopt;
    }
    HubRequest request;
    std::size_t begin = text.find("\r\n") + 2;
    const std::size_t space = text.find(' ');
    request.method = text.substr(0, space);
    request.target = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    for (std::size_t end = 0; (end = text.find("\r\n", begin)) != begin; begin = end + 2) {
      const std::size_t colon = text.find(':', begin);
      std::string name = text.substr(begin, colon - begin);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
    }
    return request;
  }

  const Handler handler_;
  int fd_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  int num_active_ = 0;  // connections, under mutex_
  std::condition_variable settled_;
  std::vector<int> clients_;           // of the acceptor, until it has ended
  std::vector<std::jthread> threads_;  // the same
  std::jthread acceptor_;
};

// A hub with one model, org/name. Files that end in .safetensors lie at another port, as large files do.
class FakeHub {
 public:
  std::string id = "org/name";
  std::map<std::string, std::string> revisions = {{"main", std::string(40, 'a')}};  // and their commits
  std::map<std::string, std::string> files;
  bool gives_ranges = true;
  // Answers in the hub's place, at either port: true, it has.
  std::function<bool(const HubConnection&, const HubRequest&)> intercept;

  std::string url() const { return hub_.url(); }
  std::string storage_url() const { return storage_.url(); }

  std::vector<HubRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // How many of the requests so far ask for that.
  int count(std::string_view method, std::string_view part) {
    const auto all = requests();
    return static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const HubRequest& r) { return r.is(method, part); }));
  }
  // Until no thread is at work on an answer: what is public may be changed then.
  void settle() {
    storage_.settle();
    hub_.settle();
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }

  void answer(const HubConnection& connection, const HubRequest& request) const {
    if (request.at_storage) return send_file(connection, request, request.target.substr(1));
    const std::string api = "/api/models/" + id + "/revision/";
    if (request.target.starts_with(api)) return send_revision(connection, request.target.substr(api.size()));
    const std::string resolve = "/" + id + "/resolve/";
    if (!request.target.starts_with(resolve))
      return void(connection.answer(401, "X-Error-Code: RepoNotFound\r\n"));
    const std::size_t slash = request.target.find('/', resolve.size());
    const std::string commit = request.target.substr(resolve.size(), slash - resolve.size());
    const std::string name = request.target.substr(slash + 1);
    const auto file = files.find(name);
    if (file == files.end()) return void(connection.answer(404, "X-Error-Code: EntryNotFound\r\n"));
    const std::string about = "X-Repo-Commit: " + commit + "\r\n";
    if (!name.ends_with(".safetensors"))
      return send_file(connection, request, name, about + "ETag: \"" + git_hash_of(file->second) + "\"\r\n");
    connection.answer(302,
                      about + "X-Linked-Etag: \"" + sha256_of(file->second) +
                          "\"\r\nX-Linked-Size: " + std::to_string(file->second.size()) +
                          "\r\nETag: \"no-hash\"\r\nLocation: " + storage_.url() + "/" + name + "\r\n",
                      request.method == "HEAD" ? "" : "Found. Redirecting");
  }

 private:
  void handle(const HubConnection& connection, HubRequest request, bool at_storage) {
    request.at_storage = at_storage;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    if (!intercept || !intercept(connection, request)) answer(connection, request);
  }

  void send_revision(const HubConnection& connection, const std::string& name) const {
    for (const auto& [revision, commit] : revisions) {
      if (revision != name && commit != name) continue;
      nlohmann::json object = {{"id", id}, {"sha", commit}, {"siblings", nlohmann::json::array()}};
      for (const auto& [file, content] : files) object["siblings"].push_back({{"rfilename", file}});
      connection.answer(200, "Content-Type: application/json\r\n", object.dump());
      return;
    }
    connection.answer(404, "X-Error-Code: RevisionNotFound\r\n");
  }

  void send_file(const HubConnection& connection, const HubRequest& request, const std::string& name,
                 const std::string& headers = {}) const {
    const std::string& content = files.at(name);
    const std::string range = request.header("range");
    if (request.method == "HEAD") return void(connection.head(200, headers, content.size()));
    if (range.empty() || !gives_ranges) return void(connection.answer(200, headers, content));
    const std::size_t begin = std::stoull(range.substr(std::string("bytes=").size()));
    if (begin >= content.size()) return void(connection.answer(416, headers));
    connection.answer(206, headers, std::string_view(content).substr(begin));
  }

  std::mutex mutex_;
  std::vector<HubRequest> requests_;  // under mutex_
  HubPort storage_{[this](const HubConnection& c, HubRequest r) { handle(c, std::move(r), true); }};
  HubPort hub_{[this](const HubConnection& c, HubRequest r) { handle(c, std::move(r), false); }};
};

}  // namespace quire::testing
