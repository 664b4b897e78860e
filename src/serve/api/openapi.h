/* openapi.h: describes the endpoints from their tables of fields, as OpenAPI and as Markdown
 * (docs/serve-fields.md). */
#ifndef LT_SERVE_OPENAPI_H
#define LT_SERVE_OPENAPI_H

#include "serve/api/json_out.h"

void lt_openapi_write(lt_json_out *o);
void lt_fields_markdown(lt_json_out *o);

#endif
