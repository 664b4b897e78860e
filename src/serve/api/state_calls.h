/* state_calls.h: functions that the calls of /v1/files, /v1/uploads and /v1/batches share. */
#ifndef LT_SERVE_STATE_CALLS_H
#define LT_SERVE_STATE_CALLS_H

#include "serve/api/files/files.h"
#include "serve/api/json_out.h"
#include "serve/api/server.h"

/* Check that the server has a folder of state, and store the caller's name in it. False: the call
 * was answered. */
bool lt_state_check(lt_call *call, char owner[LT_OWNER_NAME_BYTES]);
/* expires_after and output_expires_after: seconds within OpenAI's limits, from "created_at". */
bool lt_state_expires(int64_t seconds, const char *anchor, lt_api_error *e);
/* Write the object that describes a file. */
void lt_state_put_file(lt_json_out *o, const lt_file_entry *f);

#endif
