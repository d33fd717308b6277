// Uses the installed headers and libraries; needs no server.
#include <edgewise/client/client.h>
#include <edgewise/client/ensemble.h>

#include <iostream>

int main() {
  auto client = edgewise::Client::Create({.address = "127.0.0.1:1"});
  if (!client.ok()) return 1;
  edgewise::v1::PredictRequest request;
  request.set_model("sentiment");
  request.add_inputs()->mutable_sequence()->set_text("nobody listens");
  auto response = (*client)->Predict(request, {.timeout = absl::Seconds(2)});
  if (response.ok()) return 1;
  std::cout << response.status() << "\n";
  return edgewise::MergeEnsembleParts({}).ok() ? 1 : 0;
}
