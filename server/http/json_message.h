// Writes messages of Protobuf as JSON, by reflection.
#ifndef EDGEWISE_SERVER_HTTP_JSON_MESSAGE_H_
#define EDGEWISE_SERVER_HTTP_JSON_MESSAGE_H_

#include <google/protobuf/message.h>

#include "server/http/json_in.h"
#include "server/http/json_out.h"

namespace edgewise::server {

// kProtobuf: the ProtoJSON mapping; fields that are not set are left out. kPlain: the names of the .proto, 64-bit
// integers as numbers; messages that are not set are left out, other fields that are not set have their default. Any
// thread.
void WriteMessage(const google::protobuf::Message& message, JsonDialect dialect, JsonOut& json);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_JSON_MESSAGE_H_
