/* state_calls.h: what the calls of /v1/files, /v1/uploads and /v1/batches share. */
#ifndef LT_SERVE_STATE_CALLS_H
#define LT_SERVE_STATE_CALLS_H

#include "serve/api/files.h"
#include "serve/api/json_out.h"
#include "serve/api/multipart.h"
#include "serve/api/server.h"

/* The server has a folder of state, and the caller's name in it. False: the call was answered. */
bool lt_state_check(lt_call *call, char owner[LT_OWNER_NAME_BYTES]);
/* The purpose of a file that a client may send: batch or fine-tune. text: n bytes, or NULL. NULL:
 * *e. */
const char *lt_state_purpose(const char *text, size_t n, lt_api_error *e);
/* Has the form fields of these names (NULL at the end) alone, each at most once? What is not
 * honoured is refused by name. */
bool lt_state_form(const lt_multipart *m, const char *const *known, lt_api_error *e);
/* expires_after and output_expires_after: seconds in OpenAI's bounds, from "created_at". */
bool lt_state_expires(int64_t seconds, const char *anchor, lt_api_error *e);
/* The object that describes a file. */
void lt_state_put_file(lt_json_out *o, const lt_file_entry *f);

#endif
