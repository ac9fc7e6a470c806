"""Images per second of training on made-up data, measured and printed as Horovod's script of this name does it.

    ringrun -np 2 python examples/pytorch_synthetic_benchmark.py

After the warm-up each iteration trains on a number of batches; the figures are the mean over the iterations and 1.96
standard deviations. Scaling efficiency is the total of N ranks over N times that of one rank.
"""

import argparse
import statistics
import timeit

import models
import torch

import ringreduce.torch as hvd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(models.MODELS), default="resnet18")
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank trains on at a time (32)")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum instead of averaging")
    return parser.parse_args()


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    args = arguments()
    hvd.init()

    model = models.make(args.model, seed=0)
    scale = 1 if args.use_adasum else hvd.size()
    plain = torch.optim.SGD(model.parameters(), lr=0.01 * scale)
    optimizer = hvd.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(args.batch_size, 28, 28).unsqueeze(1)
    labels = torch.randint(10, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    say(f"Model: {args.model}")
    say(f"Batch size: {args.batch_size}")
    say(f"Number of ranks: {hvd.size()}")
    say("Running warmup...")
    timeit.timeit(step, number=args.num_warmup_batches)
    say("Running benchmark...")
    rates = []
    for number in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per rank")
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    say(f"Img/sec per rank: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")


if __name__ == "__main__":
    main()
