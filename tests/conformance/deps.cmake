# The longest suites by themselves, and one case of each kernel, which is all that TSan has time for.
set(shards one_case=*.PassesOneCaseOnThreeThreads/* delta=*.Passes/gdn_* linear=*.Passes/linear)
