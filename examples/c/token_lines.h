// SPDX-License-Identifier: MIT
#ifndef TOKEN_LINES_H
#define TOKEN_LINES_H

// Reads {"id":"...","tokens":[1,2,3]}, one request a line, in C99 and in C++.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct token_lines {
  int32_t* tokens;      // [cu_seqlens[sequences]]
  int32_t* cu_seqlens;  // [sequences + 1]
  int64_t sequences;
};

static void free_token_lines(struct token_lines* lines) {
  free(lines->tokens);
  free(lines->cu_seqlens);
  memset(lines, 0, sizeof *lines);
}

// 0 where the file cannot be read or is not of this form; then nothing is left to free.
static int read_token_lines(const char* path, struct token_lines* lines) {
  memset(lines, 0, sizeof *lines);
  FILE* const file = fopen(path, "rb");
  if (file == NULL) {
    return 0;
  }
  char* text = NULL;
  size_t bytes = 0, room = 0, got = 0;
  do {
    bytes += got;
    if (bytes + 1 >= room) {
      room = 2 * room + 65536;
      char* const grown = (char*)realloc(text, room);
      if (grown == NULL) {
        free(text);
        fclose(file);
        return 0;
      }
      text = grown;
    }
    got = fread(text + bytes, 1, room - bytes - 1, file);
  } while (got > 0);
  fclose(file);
  text[bytes] = '\0';

  // No more tokens than bytes, and no more requests.
  lines->tokens = (int32_t*)malloc((bytes + 1) * sizeof(int32_t));
  lines->cu_seqlens = (int32_t*)malloc((bytes + 1) * sizeof(int32_t));
  int ok = lines->tokens != NULL && lines->cu_seqlens != NULL;
  int32_t count = 0;
  if (ok) {
    lines->cu_seqlens[0] = 0;
  }
  static const char key[] = "\"tokens\":[";
  const char* at = text;
  while (ok && (at = strstr(at, key)) != NULL) {
    at += sizeof key - 1;
    while (*at != ']') {
      char* end = NULL;
      const long token = strtol(at, &end, 10);
      if (end == at || token < 0 || token > INT32_MAX || (*end != ',' && *end != ']')) {
        ok = 0;
        break;
      }
      lines->tokens[count++] = (int32_t)token;
      at = *end == ',' ? end + 1 : end;
    }
    lines->cu_seqlens[++lines->sequences] = count;
  }
  free(text);
  if (!ok || lines->sequences == 0) {
    free_token_lines(lines);
    return 0;
  }
  return 1;
}

#endif
