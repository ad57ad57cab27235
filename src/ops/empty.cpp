// The operators' sources stand in their folders; this file only lets the library exist before the first of them.
