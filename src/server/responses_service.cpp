#include <algorithm>
#include <random>

#include "server/api_service.h"
#include "server/json_fields.h"
#include "server/responses.h"

// The endpoints below /v1/responses.
namespace quire::server {
namespace {

// Nobody can guess it.
std::string random_response_id() {
  std::random_device random;
  return format_text("resp_{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

[[noreturn]] void refuse_response(const std::string& id) {
  throw ApiError(404, format_text("There is no response {}.", in_quotes(id)), "response_id");
}

// The id in /v1/responses/{id}{end}.
std::string response_id(const Exchange& exchange, std::string_view end) {
  constexpr std::string_view kPrefix = "/v1/responses/";
  const std::string_view path = exchange.request().path();
  const std::string_view id = path.substr(kPrefix.size(), path.size() - kPrefix.size() - end.size());
  if (!path.ends_with(end) || id.find('/') != std::string_view::npos)
    throw ApiError(404, format_text("there is no {}", in_quotes(path)));
  return std::string(id);
}

// The target's query as fields: numbers, where they are some, and texts.
OrderedJson query_of(std::string_view target) {
  OrderedJson query = OrderedJson::object();
  for (std::size_t at = target.find('?'); at != std::string_view::npos; at = target.find('&', at + 1)) {
    const std::string_view pair = target.substr(at + 1, target.find('&', at + 1) - at - 1);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string value(pair.substr(std::min(equals + 1, pair.size())));
    OrderedJson number = OrderedJson::parse(value, nullptr, false);
    query[std::string(pair.substr(0, equals))] = number.is_number() ? std::move(number) : OrderedJson(value);
  }
  return query;
}

// A page of the items, as the query wants it.
OrderedJson page_of(std::vector<OrderedJson> items, const JsonFields& query) {
  if (query.choice("order", {"asc", "desc"}) != "asc") std::ranges::reverse(items);
  auto first = items.begin();
  if (const std::string* after = query.text("after")) {
    first = std::ranges::find_if(items, [&](const OrderedJson& item) { return item["id"] == *after; });
    if (first == items.end()) refuse("after", "is {}, which is none of the items", in_quotes(*after));
    ++first;
  }
  const auto last = first + std::min(query.integer("limit", 1, 100).value_or(20), items.end() - first);
  return {{"object", "list"},
          {"first_id", first == last ? OrderedJson() : (*first)["id"]},
          {"last_id", first == last ? OrderedJson() : last[-1]["id"]},
          {"has_more", last != items.end()},
          {"data", std::vector<OrderedJson>(first, last)}};
}

}  // namespace

void ApiService::create_response(const std::shared_ptr<Exchange>& exchange) {
  chat_template();
  const std::string id = random_response_id();
  const ResponsesContext context{model_, responses_, exchange->key(), id};
  ResponsesRequest request = parse_responses_request(exchange->take_body(), context);
  ResponseHead head = response_head("", *exchange, request.chat);
  head.id = id;
  generate_chat(exchange, std::move(request.chat), [&](ChatRequest asked, const MakeParser& make_parser) {
    request.chat = std::move(asked);
    return make_responses_response(std::move(head), std::move(request), context, make_parser);
  });
}

void ApiService::get_response(const std::shared_ptr<Exchange>& exchange) {
  const OrderedJson query = query_of(exchange->request().target);
  const bool wants_items = exchange->request().path().ends_with("/input_items");
  const std::string id = response_id(*exchange, wants_items ? "/input_items" : "");
  const auto response = responses_.find(id, exchange->key());
  if (response == nullptr) refuse_response(id);
  const auto parsed = [](const StoredText& text) { return parse_text(*text, "the response", ""); };
  if (wants_items) {
    std::vector<OrderedJson> items;
    for (std::size_t i = 0; i + 1 < response->items.size(); ++i)
      for (OrderedJson& item : parsed(response->items[i])) items.push_back(std::move(item));
    return exchange->send_json(200, page_of(std::move(items), JsonFields(query)));
  }
  if (query.value("stream", OrderedJson()) == "true")
    refuse("stream", "is not supported here; only responses of background: true can be streamed again");
  OrderedJson answer = parsed(response->answer);
  answer["output"] = parsed(response->items.back());
  exchange->send_json(200, answer);
}

void ApiService::delete_response(const std::shared_ptr<Exchange>& exchange) {
  const std::string id = response_id(*exchange, "");
  if (!responses_.erase(id, exchange->key())) refuse_response(id);
  exchange->send_json(200, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

void ApiService::cancel_response(const std::shared_ptr<Exchange>& exchange) {
  const std::string id = response_id(*exchange, "/cancel");
  if (responses_.find(id, exchange->key()) == nullptr) refuse_response(id);
  throw ApiError(400, "only responses of background: true can be cancelled, and there are none",
                 "response_id");
}

}  // namespace quire::server
