"""The optimizer's Python, and what it uses."""

from mutations.row import Mutation

ROWS = (
    Mutation(
        "average",
        "ringreduce/torch/exchange.py",
        "/ (self.size if self.op == Average else 1)",
        "/ (1 if self.op == Average else 1)",
        ("test_optimizer_training.py::test_sparse_gradients",),
    ),
    Mutation(
        "missing-gradient",
        "ringreduce/torch/registered_bucket.py",
        "                view.zero_()\n",
        "",
        ("test_optimizer.py::test_missing_gradients_are_zeros",),
    ),
    Mutation(
        "closure",
        "ringreduce/torch/distributed_optimizer.py",
        "            loss = closure()\n            self._reduce()\n",
        "            loss = closure()\n",
        ("test_optimizer.py::test_closures_are_reduced",),
    ),
    Mutation(
        "too-often",
        "ringreduce/torch/buckets.py",
        "return len(set(map(id, self.come))) < len(self.come)",
        "return False",
        ("test_optimizer.py::test_small_gradients_come_in_any_order",),
    ),
    Mutation(
        "layouts-differ",
        "ringreduce/torch/reducer.py",
        "if any(theirs != digest for _, theirs in offers):",
        "if any(theirs != theirs for _, theirs in offers):",
        ("test_optimizer.py::test_what_is_refused",),
    ),
    Mutation(
        "int8-error",
        "ringreduce/torch/quantization.py",
        "            x += self.error\n",
        "            x += 0 * self.error\n",
        ("test_optimizer_compression.py::test_error_feedback_loses_nothing",),
    ),
    Mutation(
        "powersgd-error",
        "ringreduce/torch/powersgd.py",
        "matrix + self.errors[at] if at in self.errors else matrix",
        "matrix",
        ("test_optimizer_compression.py::test_error_feedback_loses_nothing",),
    ),
    Mutation(
        "shard",
        "ringreduce/torch/shards.py",
        "return flat.narrow(0, self.channel.process_set.group.rank * count, count)",
        "return flat.narrow(0, 0 * count, count)",
        ("test_optimizer_sharded.py::test_staged_collectives_do_as_well",),
    ),
    Mutation(
        "clipping",
        "ringreduce/torch/sharded.py",
        "total = mine if math.isinf(order) else mine**order",
        "total = mine",
        ("test_optimizer_sharded.py::test_clipping",),
    ),
    Mutation(
        "adasum",
        "ringreduce/torch/adasum_optimizer.py",
        "torch.add(start, change, out=parameter.data)",
        "torch.add(parameter, change, out=parameter.data)",
        ("test_optimizer_training.py::test_adasum_combines_the_ranks_changes",),
    ),
    Mutation(
        "set-position",
        "ringreduce/process_sets.py",
        "            return self._position[rank]\n",
        "            return self._position and rank\n",
        ("test_process_sets.py",),
    ),
    Mutation(
        "keras-start",
        "ringreduce/keras/first_step.py",
        "        if applied > 0:\n",
        "        if applied >= 0:\n",
        ("test_keras2.py::test_keras_2_trains_as_horovod_did",),
    ),
    Mutation(
        "what-was-applied",
        "ringreduce/torch/horovod_functions.py",
        "return reducescatter(tensor, name, Compression.none, op,",
        "return reducescatter(tensor, name, Compression.none, 0,",
        ("test_horovod_names.py::test_autograd_functions",),
    ),
    Mutation(
        "no-operation",
        "ringreduce/common/arguments.py",
        "    check_op(average)",
        "    assert average",
        ("test_torch_errors.py::test_the_error_contract",),
    ),
)
