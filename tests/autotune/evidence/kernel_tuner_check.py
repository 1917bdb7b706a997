"""kernel_tuner_check.py CACHE.json T4.json: what the real Kernel Tuner makes of our exports, as one line of
JSON.

The cache is loaded by the package's own reader and searched whole in its simulation mode; the T4 file is
checked against the schema that the package ships.
"""
import json
import shutil
import sys

import jsonschema
from constraint import FunctionConstraint
from kernel_tuner import file_utils, tune_kernel, util

cache_path, t4_path = sys.argv[1:]
shutil.copy(cache_path, cache_path + ".copy.json")  # the package writes to the cache it reads
cache = util.read_cache(cache_path, open_cache=False)
recorded = {tuple(entry[key] for key in cache["tune_params_keys"]) for entry in cache["cache"].values()}
results, environment = tune_kernel(
    **util.infer_args_from_cache(cache),
    cache=cache_path + ".copy.json",
    restrictions=[FunctionConstraint(lambda *values: values in recorded)],
    simulation_mode=True,
    strategy="brute_force",
    quiet=True,
)
with open(t4_path, encoding="utf-8") as file:
    t4 = json.load(file)
jsonschema.validate(t4, file_utils.output_file_schema("results")[1])
print(
    json.dumps(
        {
            "evaluated": len(results),
            "failed": sum("__error__" in result for result in results),
            "best": environment["best_config"]["time"],
            "device": environment["device_name"],
            "t4_results": len(t4["results"]),
        }
    )
)
