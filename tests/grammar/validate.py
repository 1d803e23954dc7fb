"""Checks lines of {"schema": TEXT, "instance": TEXT} with Python's jsonschema: exit code 77 where it is absent."""
import json
import sys

try:
    import jsonschema
except ImportError:
    sys.exit(77)

wrong = 0
for line in open(sys.argv[1], encoding="utf-8"):
    case = json.loads(line)
    schema, instance = json.loads(case["schema"]), json.loads(case["instance"])
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = jsonschema.FormatChecker()
    for error in validator(schema, format_checker=checker).iter_errors(instance):
        print(f"{case['instance']} breaks {case['schema']}: {error.message}")
        wrong += 1
sys.exit(1 if wrong else 0)
