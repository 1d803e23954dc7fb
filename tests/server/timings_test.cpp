#include <gtest/gtest.h>

#include <chrono>

#include "server/api_response.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

RequestOutput request_of(std::size_t num_outputs) {
  RequestOutput request;
  request.arrival = TimePoint(std::chrono::hours(1));
  request.outputs.resize(num_outputs);
  return request;
}

void expect_timings(const RequestOutput& request, double queue, double prefill, double decode) {
  const Timings timings = timings_of({&request, 1});
  EXPECT_DOUBLE_EQ(timings.queue, queue);
  EXPECT_DOUBLE_EQ(timings.prefill, prefill);
  EXPECT_DOUBLE_EQ(timings.decode, decode);
}

TEST(TimingsTest, AreThePartsOfTheWholeTime) {
  RequestOutput request = request_of(1);
  const TimePoint start = request.arrival;
  request.outputs[0].times = {start + milliseconds(10), start + milliseconds(30), start + milliseconds(90),
                              start + milliseconds(90)};
  expect_timings(request, 10, 20, 60);
}

TEST(TimingsTest, WhatItEndedInTookTheRest) {
  RequestOutput request = request_of(1);
  OutputTimes& times = request.outputs[0].times;
  times.finished = request.arrival + milliseconds(50);
  expect_timings(request, 50, 0, 0);
  times.scheduled = request.arrival + milliseconds(20);
  expect_timings(request, 20, 30, 0);
  times.first_token = times.last_token = request.arrival + milliseconds(40);
  expect_timings(request, 20, 20, 10);
}

TEST(TimingsTest, OfSeveralOutputsTheFirstBeginsAndTheLastEnds) {
  RequestOutput request = request_of(2);
  const TimePoint start = request.arrival;
  request.outputs[0].times = {start + milliseconds(10), start + milliseconds(30), start + milliseconds(40),
                              start + milliseconds(40)};
  request.outputs[1].times = {start + milliseconds(30), start + milliseconds(35), start + milliseconds(100),
                              start + milliseconds(100)};
  expect_timings(request, 10, 20, 70);
}

TEST(TimingsTest, OfSeveralPromptsTheFirstBeginsAndTheLastEnds) {
  std::vector<RequestOutput> requests = {request_of(1), request_of(1)};
  const TimePoint start = requests[0].arrival;
  requests[1].arrival += milliseconds(5);
  requests[0].outputs[0].times = {start + milliseconds(10), start + milliseconds(50),
                                  start + milliseconds(60), start + milliseconds(60)};
  requests[1].outputs[0].times = {start + milliseconds(20), start + milliseconds(40),
                                  start + milliseconds(90), start + milliseconds(90)};
  const Timings timings = timings_of(requests);
  EXPECT_DOUBLE_EQ(timings.queue, 10);
  EXPECT_DOUBLE_EQ(timings.prefill, 30);
  EXPECT_DOUBLE_EQ(timings.decode, 50);
}

}  // namespace
}  // namespace quire::server
