# A process for the fingerprints of each demo model, one for what prefix caching must not change, and one for everything else.
set(shards dense=*FingerprintTest.*/dense moe=*FingerprintTest.*/moe prefixes=*Prefixes.*)
