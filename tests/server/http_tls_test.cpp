#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <fstream>

#include "expect_error.h"
#include "server/http_server_fixture.h"
#include "temp_dir.h"

namespace quire::server {
namespace {

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

struct Identity {
  std::string certificate, key;  // PEM
};

// Certified by itself, for an hour.
Identity make_identity() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                             -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_sign(certificate, key, EVP_sha256());
  BIO* certificate_text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_text, certificate);
  BIO* key_text = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_text, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {text_of(certificate_text), text_of(key_text)};
}

// A blocking TLS client over a plain one's socket, which trusts one certificate.
class TlsClient {
 public:
  TlsClient(HttpClient client, const std::string& certificate_file)
      : client_(std::move(client)), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    SSL_CTX_load_verify_file(context_, certificate_file.c_str());
    SSL_set_fd(ssl_, client_.fd());
    SSL_connect(ssl_);
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool verified() const {
    return SSL_get_verify_result(ssl_) == X509_V_OK && SSL_get0_peer_certificate(ssl_) != nullptr;
  }
  void send(std::string_view bytes) { SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())); }
  std::string read_until(std::string_view text) {
    while (input_.find(text) == std::string::npos && read_more()) {
    }
    return std::exchange(input_, {});
  }
  std::string read_to_end() {
    while (read_more()) {
    }
    return std::exchange(input_, {});
  }
  bool ended_properly() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void leave() { client_.close(); }
  void end_output(bool with_close_notify) {
    if (with_close_notify) SSL_shutdown(ssl_);
    client_.end_output();
  }

 private:
  bool read_more() {
    char buffer[16384];
    const int n = SSL_read(ssl_, buffer, sizeof buffer);
    if (n > 0) input_.append(buffer, static_cast<std::size_t>(n));
    return n > 0;
  }

  HttpClient client_;
  SSL_CTX* context_;
  SSL* ssl_;
  std::string input_;
};

class HttpTlsTest : public HttpServerTest {
 protected:
  HttpServerConfig config() const {
    HttpServerConfig config = HttpServerTest::config();
    config.tls_certificate = certificate_;
    config.tls_key = key_;
    return config;
  }

  const TempDir dir_;
  const Identity identity_ = make_identity();
  const std::string certificate_ = dir_.write("cert.pem", identity_.certificate);
  const std::string key_ = dir_.write("key.pem", identity_.key);
};

TEST_F(HttpTlsTest, AnswersOverTls) {
  start(config());
  TlsClient client(connect(), certificate_);
  ASSERT_TRUE(client.verified());
  const std::string body(1 << 20, 'b');
  client.send(post("/echo", body));
  EXPECT_NE(client.read_until(body).find("\r\n\r\nPOST /echo\n" + body), std::string::npos);
  client.send(get("/hold") + get("/echo", "Connection: close\r\n"));
  const HeldRequest held = wait_held();
  held.responder->begin(200, {});
  for (const char* piece : {"ab", "cd"}) {
    held.responder->write(piece);
    EXPECT_NE(client.read_until(piece).find(std::string("2\r\n") + piece), std::string::npos);
  }
  held.responder->end();
  EXPECT_NE(client.read_to_end().find("GET /echo\n"), std::string::npos);
  EXPECT_TRUE(client.ended_properly());
  client.leave();
  EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
}

TEST_F(HttpTlsTest, AnUrgentRequestIsAnsweredWhenConnectionsAreFull) {
  HttpServerConfig config = this->config();
  config.limits.max_connections = 1;
  config.is_urgent = [](const HttpRequest& request) { return request.target == "/echo?urgent"; };
  start(config);
  TlsClient only(connect(), certificate_);
  only.send(get("/echo"));
  only.read_until("GET /echo\n");
  TlsClient urgent(connect(), certificate_);
  urgent.send(get("/echo?urgent"));
  EXPECT_NE(urgent.read_to_end().find("GET /echo?urgent\n"), std::string::npos);
  EXPECT_TRUE(urgent.ended_properly());
  TlsClient other(connect(), certificate_);
  other.send(get("/echo"));
  EXPECT_EQ(other.read_to_end().find("HTTP/1.1 503 "), 0U);
}

TEST_F(HttpTlsTest, AHalfClosedClientGetsTheAnswerThatItWaitsFor) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's client sends an alert where the end is no proper one
  start(config());
  for (const bool with_close_notify : {true, false}) {
    TlsClient client(connect(), certificate_);
    client.send(get("/hold"));
    const HeldRequest held = wait_held();
    client.end_output(with_close_notify);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(*held.disconnects, 0);
    held.responder->send(200, {}, "whole");
    EXPECT_NE(client.read_to_end().find("\r\n\r\nwhole"), std::string::npos);
    EXPECT_TRUE(client.ended_properly());
  }
}

TEST_F(HttpTlsTest, NoticesDisconnects) {
  start(config());
  TlsClient client(connect(), certificate_);
  client.send(get("/hold"));
  const HeldRequest waiting = wait_held();
  client.leave();
  EXPECT_TRUE(becomes_true([&] { return *waiting.disconnects == 1; }));
}

TEST_F(HttpTlsTest, RefusesALargeBodyAndEndsProperly) {
  HttpServerConfig config = this->config();
  config.limits.max_body_bytes = 1000;
  start(config);
  TlsClient client(connect(), certificate_);
  client.send(post("/echo", std::string(4 << 20, 'x')));
  EXPECT_EQ(client.read_to_end().rfind("HTTP/1.1 413 ", 0), 0u);
  EXPECT_TRUE(client.ended_properly());
}

TEST_F(HttpTlsTest, AHandshakeThatStopsIsCut) {
  HttpServerConfig config = this->config();
  config.limits.header_timeout = 100ms;
  start(config);
  HttpClient silent = connect();
  EXPECT_TRUE(silent.ends_within(5s));
  HttpClient plain = connect();
  plain.send(get("/echo"));
  EXPECT_TRUE(plain.ends_within(5s));
}

TEST_F(HttpTlsTest, AKeyMayLieWithTheCertificate) {
  HttpServerConfig config = this->config();
  config.tls_certificate = dir_.write("both.pem", identity_.certificate + identity_.key);
  config.tls_key.clear();
  start(config);
  TlsClient client(connect(), certificate_);
  EXPECT_TRUE(client.verified());
}

TEST_F(HttpTlsTest, WhatIsWrongWithAFileIsSaid) {
  const auto with = [&](const std::string& certificate, const std::string& key) {
    HttpServerConfig config = this->config();
    config.tls_certificate = certificate;
    config.tls_key = key;
    return [config] { HttpServer(config, {}); };
  };
  const std::string text = dir_.write("text", "no PEM");
  const std::string other = dir_.write("other.pem", make_identity().key);
  expect_error(with("/no/such", key_), {"TLS certificate /no/such", "No such file"});
  expect_error(with(certificate_, "/no/such"), {"TLS key /no/such", "No such file"});
  expect_error(with(text, key_), {"TLS certificate " + text, "no start line"});
  expect_error(with(certificate_, text), {"TLS key " + text});
  expect_error(with(certificate_, other), {"TLS key " + other, "mismatch"});
}

}  // namespace
}  // namespace quire::server
