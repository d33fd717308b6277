#include "tests/client/fake_service.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "edgewise/v1/inference.grpc.pb.h"

namespace edgewise::testing {
namespace {

grpc::Status ToGrpc(const absl::Status& status) {
  auto details = status.GetPayload("type.googleapis.com/google.rpc.Status");
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details ? std::string(*details) : "");
}

class Service final : public v1::InferenceService::Service {
 public:
  explicit Service(FakeServer::Predict predict) : predict_(std::move(predict)) {}

  grpc::Status Predict(grpc::ServerContext* context, const v1::PredictRequest* request,
                       v1::PredictResponse* response) override {
    CallInfo info;
    auto found = context->client_metadata().find("authorization");
    if (found != context->client_metadata().end()) {
      info.authorization = std::string(found->second.data(), found->second.size());
    }
    info.has_deadline = context->deadline() < std::chrono::system_clock::now() + std::chrono::hours(24);
    absl::StatusOr<v1::PredictResponse> answer = predict_(*request, info);
    if (!answer.ok()) return ToGrpc(answer.status());
    *response = *std::move(answer);
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (!generate) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "the test says nothing of Generate");
    return ToGrpc(generate(*request, [writer](const v1::GenerateResponse& message) { return writer->Write(message); }));
  }

  FakeServer::Generate generate;

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    *response->add_models() = Other();
    *response->add_models() = Toy();
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    if (request->model() == "toy" && request->version() > 1) {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("toy has no version ", request->version()));
    } else if (request->model() == "toy") {
      *response->mutable_model() = Toy();
    } else if (request->model() == "ids") {
      *response->mutable_model() = Toy();
      response->mutable_model()->set_name("ids");
      response->mutable_model()->set_tokenizer("none");
    } else if (request->model() == "encoder") {
      *response->mutable_model() = Toy();
      response->mutable_model()->set_name("encoder");
      response->mutable_model()->set_task("embedding");
      response->mutable_model()->clear_labels();
    } else if (request->model() == "other") {
      *response->mutable_model() = Other();
    } else {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "model: no model is named \"" + request->model() + "\"");
    }
    return grpc::Status::OK;
  }

 private:
  static v1::ModelInfo Toy() {
    v1::ModelInfo model;
    model.set_name("toy");
    model.set_version(1);
    model.set_state(v1::ModelInfo::READY);
    model.set_task("sequence-classification");
    model.set_attention("sbm/bernoulli");
    model.set_layers(2);
    model.set_heads(2);
    model.set_max_tokens(512);
    model.set_parameters(1234567);
    model.set_tokenizer("word");
    model.add_labels("negative");
    model.add_labels("positive");
    return model;
  }
  static v1::ModelInfo Other() {
    v1::ModelInfo model;
    model.set_name("other");
    model.set_version(3);
    model.set_state(v1::ModelInfo::FAILED);
    model.set_error("config.json: hidden_size is missing");
    return model;
  }

  FakeServer::Predict predict_;
};

}  // namespace

namespace {

std::shared_ptr<grpc::ServerCredentials> Credentials(const ServerTls& tls) {
  if (tls.key.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(tls.mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                       : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
  if (tls.mutual) options.pem_root_certs = tls.certificate;
  return grpc::SslServerCredentials(options);
}

}  // namespace

struct FakeServer::Impl {
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> server;
};

FakeServer::FakeServer(Predict predict, const ServerTls& tls) : impl_(std::make_unique<Impl>()) {
  grpc::EnableDefaultHealthCheckService(true);
  impl_->service = std::make_unique<Service>(std::move(predict));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", Credentials(tls), &port);
  builder.RegisterService(impl_->service.get());
  builder.SetMaxReceiveMessageSize(64 << 20);
  impl_->server = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
  SetServing("toy", true);
  SetServing("other", false);
}

FakeServer::~FakeServer() { impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2)); }

void FakeServer::SetGenerate(Generate generate) { impl_->service->generate = std::move(generate); }

void FakeServer::SetServing(const std::string& service, bool serving) {
  impl_->server->GetHealthCheckService()->SetServingStatus(service, serving);
}

v1::PredictResponse PlausibleAnswer(const v1::PredictRequest& request) {
  constexpr int kPositions = 8;
  v1::PredictResponse response;
  response.set_model(request.model());
  response.set_version(1);
  response.set_seed(request.ensemble().has_seed() ? request.ensemble().seed() : 7);
  response.set_device("cpu/test/fp32");
  response.set_request_id(request.request_id());
  response.mutable_timing()->set_queue_us(120);
  response.mutable_timing()->set_compute_us(3100);
  response.mutable_timing()->set_total_us(3300);
  response.mutable_timing()->set_batch_inputs(1);
  response.mutable_timing()->set_batch_tokens(kPositions);
  for (const v1::Input& input : request.inputs()) {
    v1::Prediction* prediction = response.add_predictions();
    const size_t size =
        input.sequence().has_text() ? input.sequence().text().size() : input.sequence().token_ids().values_size();
    const int label = static_cast<int>(size % 2);
    prediction->set_label_id(label);
    prediction->set_label(label == 1 ? "positive" : "negative");
    prediction->set_samples(std::max<uint32_t>(1, request.ensemble().samples()));
    for (int c = 0; c < 2; ++c) {
      prediction->add_probabilities(c == label ? 0.75f : 0.25f);
      prediction->add_stddev(prediction->samples() > 1 ? 0.02f : 0.0f);
    }
    prediction->set_predictive_entropy(0.5623);
    prediction->set_mutual_information(prediction->samples() > 1 ? 0.0123 : 0.0);
    v1::EdgeReport* edges = prediction->mutable_edges();
    edges->set_edges(40);
    edges->set_pairs(4 * kPositions * kPositions);
    edges->set_density(40.0 / (4 * kPositions * kPositions));
    edges->set_max_sample_edges(41);
    if (request.budget().has_max_edges()) {
      edges->set_budget(request.budget().max_edges());
      edges->set_capped(request.budget().max_edges() < 40);
    }
    for (int l = 0; l < 2 && (request.outputs().key_degrees() || request.outputs().graph()); ++l) {
      v1::EdgeReport::LayerEdges* layer = edges->add_layers();
      v1::Graph::Layer* graph_layer = request.outputs().graph() ? prediction->mutable_graph()->add_layers() : nullptr;
      for (int h = 0; h < 2; ++h) {
        v1::EdgeReport::HeadEdges* head = layer->add_heads();
        head->set_edges(10);
        for (int key = 0; key < kPositions; ++key) {
          head->add_key_degrees((key == l + 2 * h ? kPositions : key % 2) * prediction->samples());
        }
        if (graph_layer == nullptr) continue;
        v1::Graph::Head* graph = graph_layer->add_heads();
        graph->add_row_offsets(0);
        for (int query = 0; query < kPositions; ++query) {
          graph->add_keys(query);
          graph->add_weights(1.0f);
          graph->add_row_offsets(query + 1);
        }
      }
    }
  }
  return response;
}

}  // namespace edgewise::testing
