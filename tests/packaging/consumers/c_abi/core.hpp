// SPDX-License-Identifier: MIT
#pragma once

int compact_rows_of(const char* path);  // N' of a file of token lines, or -1
