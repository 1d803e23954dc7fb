#include <csignal>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/server/stop_signal.h"
#include "record/recording.h"
#include "server/api_server.h"

namespace quire::cli {

int serve_recording(const std::string& path, int port) {
  std::signal(SIGPIPE, SIG_IGN);
  const StopSignal stop;
  server::require_window();
  std::shared_ptr<server::Window> window = server::make_window(Recording(path));
  server::ApiServerConfig config;
  config.http.port = static_cast<std::uint16_t>(port);
  config.access_log = server::AccessLogFormat::kOff;
  server::ApiServer http(config);
  StopSignal::arm();
  http.show(std::move(window));
  print_text(stderr, "quire: {} is shown on http://{}:{}/window (Ctrl-C stops)\n", path, config.http.host,
             http.port());
  StopSignal::wait();
  http.stop({});
  return 0;
}

}  // namespace quire::cli
