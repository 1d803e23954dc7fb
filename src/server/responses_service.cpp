#include <algorithm>
#include <array>
#include <random>

#include "server/api_service.h"
#include "server/json_fields.h"
#include "server/response_items.h"
#include "server/responses_response.h"

// The endpoints below /v1/responses.
namespace quire::server {
namespace {

// Nobody can guess it.
std::string random_response_id() {
  std::random_device random;
  return format_text("resp_{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

struct ResponsePath {
  std::string id;
  std::string_view rest;  // behind the id: empty, or from the slash
};

ResponsePath response_path(const Exchange& exchange) {
  constexpr std::string_view kPrefix = "/v1/responses/";
  const std::string_view path = exchange.request().path().substr(kPrefix.size());
  const std::size_t end = std::min(path.find('/'), path.size());
  return {std::string(path.substr(0, end)), path.substr(end)};
}

[[noreturn]] void refuse_path(const Exchange& exchange) {
  throw ApiError(404, format_text("there is no {}", in_quotes(exchange.request().path())));
}

[[noreturn]] void refuse_id(const std::string& id) {
  throw ApiError(404, format_text("There is no response {}.", in_quotes(id)), "response_id");
}

// The target's query as text fields; a name's first value counts.
OrderedJson query_of(std::string_view target) {
  OrderedJson fields = OrderedJson::object();
  std::string_view rest = target.substr(std::min(target.find('?'), target.size() - 1) + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    fields.emplace(std::string(pair.substr(0, equals)), pair.substr(std::min(equals + 1, pair.size())));
  }
  return fields;
}

// A page of the items, in an order and behind one of them.
OrderedJson page_of(std::vector<OrderedJson> items, const JsonFields& query) {
  constexpr std::array<std::string_view, 2> kOrders = {"asc", "desc"};
  if (query.get("order", to_choice, kOrders).value_or("desc") == "desc") std::ranges::reverse(items);
  auto begin = items.begin();
  if (const std::string* after = query.text("after")) {
    begin = std::ranges::find_if(items, [&](const OrderedJson& item) { return item["id"] == *after; });
    if (begin == items.end()) refuse("after", "after is {}, which is none of the items", in_quotes(*after));
    ++begin;
  }
  std::int64_t limit = 20;
  if (const std::string* text = query.text("limit")) {
    const bool is_number = !text->empty() && text->size() < 4 &&
                           std::ranges::all_of(*text, [](char c) { return c >= '0' && c <= '9'; });
    limit = to_integer(is_number ? OrderedJson(std::stoi(*text)) : OrderedJson(*text), "limit", 1, 100);
  }
  const auto end = begin + std::min<std::int64_t>(limit, items.end() - begin);
  OrderedJson data(std::vector<OrderedJson>(begin, end));
  return {{"object", "list"},
          {"first_id", data.empty() ? OrderedJson() : data.front()["id"]},
          {"last_id", data.empty() ? OrderedJson() : data.back()["id"]},
          {"has_more", end != items.end()},
          {"data", std::move(data)}};
}

}  // namespace

void ApiService::create_response(const std::shared_ptr<Exchange>& exchange) {
  chat_template();
  const std::string id = random_response_id();
  const ResponsesContext context{model_, content_format_, responses_, exchange->key(), id};
  ResponsesRequest request = parse_responses_request(parse_body(exchange->take_body()), context);
  ResponseHead head = response_head("", id, request.chat.model);
  ChatRequest chat = std::move(request.chat);
  generate_chat(exchange, std::move(chat), [&](ChatRequest asked, const MakeParser& make_parser) {
    request.chat = std::move(asked);
    return std::make_unique<ResponsesResponse>(std::move(head), std::move(request), context, make_parser);
  });
}

void ApiService::get_response(const std::shared_ptr<Exchange>& exchange) {
  const auto [id, rest] = response_path(*exchange);
  const OrderedJson query = query_of(exchange->request().target);
  if (!rest.empty() && rest != "/input_items") refuse_path(*exchange);
  const auto response = responses_.find(id, exchange->key());
  if (response == nullptr) refuse_id(id);
  const auto parsed = [](const StoredText& text) { return parse_text(*text, "what is kept", ""); };
  if (rest.empty()) {
    if (query.value("stream", "") == "true")
      refuse("stream", "stream is not supported here; only a response of background: true is streamed again");
    OrderedJson answer = parsed(*response->answer);
    answer["output"] = parsed(*response->items.back());
    return exchange->send_json(200, answer);
  }
  std::vector<OrderedJson> items;
  for (auto text = response->items.begin(); text + 1 != response->items.end(); ++text)
    for (OrderedJson& item : parsed(**text)) items.push_back(std::move(item));
  exchange->send_json(200, page_of(std::move(items), JsonFields(query)));
}

void ApiService::delete_response(const std::shared_ptr<Exchange>& exchange) {
  const auto [id, rest] = response_path(*exchange);
  if (!rest.empty()) refuse_path(*exchange);
  if (!responses_.erase(id, exchange->key())) refuse_id(id);
  exchange->send_json(200, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

void ApiService::cancel_response(const std::shared_ptr<Exchange>& exchange) {
  const auto [id, rest] = response_path(*exchange);
  if (rest != "/cancel") refuse_path(*exchange);
  if (responses_.find(id, exchange->key()) == nullptr) refuse_id(id);
  throw ApiError(400, "only a response of background: true can be cancelled, and there are none",
                 "response_id");
}

}  // namespace quire::server
