# 200 drawn meshes of up to 8 ranks, and 60 that train adapters, 50 steps each, against one rank. The seed changes with each run and is printed with a failure's mesh.
suite -t 7200 "drawn meshes" env LATEEN_MESHES="${LATEEN_MESHES:-200}" LATEEN_MESHES_LORA="${LATEEN_MESHES_LORA:-60}" LATEEN_MESH_STEPS=50 LATEEN_MESH_SEED="${LATEEN_MESH_SEED:-$(date +%s)}" build/tests/unit/parallel/test_meshes
