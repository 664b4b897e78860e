/* aws_config.h: finds the keys, region and endpoint for an object store where the AWS command
 * line finds them:
 *
 *     keys       AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (not if a profile was
 *                asked for), or the profile's section of ~/.aws/credentials, or that of
 *                ~/.aws/config
 *     profile    the option, AWS_DEFAULT_PROFILE, AWS_PROFILE, "default"
 *     region     the option, AWS_REGION, AWS_DEFAULT_REGION, the profile, "us-east-1"
 *     endpoint   the option, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile (endpoint_url, or
 *                that of its section `services` for s3), or Amazon's
 *     style      the profile's s3.addressing_style
 *
 * If a profile has a role, single sign-on or a process that makes keys, botocore prefers these to
 * keys in the profile. Such a profile is refused, because we would use other keys than botocore.
 * AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE move the files. No function prints a key, and
 * lt_aws_config_wipe overwrites them. */
#ifndef LT_PLATFORM_COPY_AWS_CONFIG_H
#define LT_PLATFORM_COPY_AWS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

typedef struct {
    char access[256], secret[256], token[8192]; /* token "": none. */
    char region[64], endpoint[1024];            /* endpoint "": Amazon's. */
    char addressing[16];                        /* "", "auto", "path" or "virtual" */
    bool anonymous;                             /* Requests are not signed. */
} lt_aws_config;

typedef struct {
    const char *profile, *region, *endpoint; /* "": not given. */
    bool anonymous;
} lt_aws_wanted;

/* NOT_FOUND: there are no keys, or no such profile; the message lists the places that were
 * searched. UNSUPPORTED: the profile gets its keys in an unsupported way, which the message
 * names. */
LT_MUST_USE lt_err lt_aws_config_read(lt_aws_config *out, const lt_aws_wanted *wanted);
void lt_aws_config_wipe(lt_aws_config *c);

/* The value of `name` in [section] of an ini text, which may be NULL. An indented name belongs to
 * the name without a value before it: "s3.endpoint_url". name NULL: only look for the section.
 * *found: it is there. FORMAT: a line is no comment, section or "name = value"; LIMIT: the value
 * has room bytes or more. */
LT_MUST_USE lt_err lt_ini_get(const char *text, const char *section, const char *name, char *out,
                              size_t room, bool *found);

#endif
