/* hub.h: reads Hugging Face's hub: the list of a repository's files, and their bytes.
 *
 *     GET ENDPOINT/api/models/ORG/NAME/revision/REVISION?blobs=true   commit, files, checksums
 *     GET ENDPOINT/ORG/NAME/resolve/COMMIT/FILE                       redirects to the bytes
 *
 * The checksum of a large file is the SHA-256 of its content, that of a small one git's SHA-1. The
 * checksum is also the file's name in the cache:
 *
 *     HF_HOME/hub/models--ORG--NAME/blobs/CHECKSUM
 *                                  /snapshots/COMMIT/FILE -> ../../blobs/CHECKSUM
 *                                  /refs/REVISION         the commit, as text
 *
 * HF_ENDPOINT names another hub; HF_TOKEN, or the file HF_HOME/token, opens private
 * repositories. The other variables of huggingface_hub are those of docs/platform/copy.md. */
#ifndef LT_PLATFORM_COPY_HUB_H
#define LT_PLATFORM_COPY_HUB_H

#include "platform/copy/call.h"
#include "platform/copy/checksum.h"
#include "platform/copy/location.h"

#define LT_HUB_COMMIT_BYTES 41

typedef struct lt_hub lt_hub;
typedef struct lt_hub_file lt_hub_file;

/* A file of a repository; checksum: its name in the cache. */
typedef lt_err (*lt_hub_found)(void *ctx, const char *name, int64_t size_bytes,
                               const lt_checksum *check);

LT_MUST_USE lt_err lt_hub_open(lt_hub **out);
void lt_hub_close(lt_hub *hub);

/* NOT_FOUND: no such repository or revision, or it is private. */
LT_MUST_USE lt_err lt_hub_list(lt_hub *hub, lt_web *h, const lt_location *at,
                               char commit[LT_HUB_COMMIT_BYTES], lt_hub_found found, void *ctx);
/* The same, from the text of an answer. */
LT_MUST_USE lt_err lt_hub_list_read(const char *json, size_t bytes,
                                    char commit[LT_HUB_COMMIT_BYTES], lt_hub_found found,
                                    void *ctx);

/* A file that is reached through redirections; the address to which they lead is kept while it is
 * valid. hub NULL: a web address. shown: name for messages; it must outlive this. */
LT_MUST_USE lt_err lt_hub_file_open(lt_hub_file **out, const lt_hub *hub, const char *url,
                                    const char *shown);
/* version, in_one: as for lt_call_range and its caller. */
LT_MUST_USE lt_err lt_hub_file_read(lt_hub_file *f, lt_web *h, const char *version, bool in_one,
                                    int64_t size_bytes, int64_t at, int64_t n, unsigned char *into);
/* Request its first byte, to read the headers. */
LT_MUST_USE lt_err lt_hub_file_probe(lt_hub_file *f, lt_web *h, lt_web_reply *reply);
void lt_hub_file_close(lt_hub_file *f);

/* The address of a file of the repository. */
LT_MUST_USE lt_err lt_hub_url(char **out, const lt_hub *hub, const lt_location *at,
                              const char *commit, const char *name);

/* The folder of a repository in the cache. */
LT_MUST_USE lt_err lt_hub_cache(char out[LT_PATH_BYTES], const lt_location *at);
/* Whether HF_HUB_OFFLINE is set: the hub must not be contacted. */
bool lt_hub_is_offline(void);

#endif
