"""Ten answers to each of some schemas, at temperature 1, as jsonschema sees them. Called by schemas.sh:

    schemas_test.py URL FILE COUNT

An answer that was cut by max_tokens is not judged. One that does not validate is an error unless the server told that a
part of the schema is not enforced."""
import json
import random
import sys
import urllib.error
import urllib.request

import jsonschema

ANSWERS = 10


def ask(url, schema, seed):
    body = {"messages": [{"role": "user", "content": "Write a JSON object."}], "max_tokens": 400, "n": ANSWERS,
            "temperature": 1, "seed": seed, "guided_json": schema}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read()), answer.headers.get("X-Unenforced")


def main():
    url, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(path, encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    random.Random(1).shuffle(cases)
    seen = {"schemas": 0, "refused": 0, "valid": 0, "cut": 0, "invalid, told": 0, "invalid": 0}
    for seed, case in enumerate(cases[:count]):
        seen["schemas"] += 1
        try:
            answer, told = ask(url.rstrip("/").removesuffix("/v1"), case["schema"], seed)
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
            seen["refused"] += 1
            continue
        validator = jsonschema.validators.validator_for(case["schema"])(case["schema"])
        for choice in answer["choices"]:
            if choice["finish_reason"] != "stop":
                seen["cut"] += 1
                continue
            text = choice["message"]["content"]
            try:
                valid = validator.is_valid(json.loads(text))
            except json.JSONDecodeError:
                valid = False
            kind = "valid" if valid else "invalid, told" if told else "invalid"
            seen[kind] += 1
            if kind == "invalid":
                print(f"{case['name']}: {text[:300]}", file=sys.stderr)
    print(", ".join(f"{name} {number}" for name, number in seen.items()))
    sys.exit(1 if seen["invalid"] > 0 else 0)


if __name__ == "__main__":
    main()
