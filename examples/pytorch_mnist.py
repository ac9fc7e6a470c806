"""A small convolutional network on Fashion-MNIST, in the shape of a Horovod script: only the import line tells.

ringrun -np 2 python examples/pytorch_mnist.py --epochs 2
"""

import argparse

import fashion_mnist
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import ringreduce.torch as hvd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64, help="samples a rank trains on at a time (64)")
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batches", type=int, help="stop each epoch after so many batches")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank; scaled by their number")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=100, help="batches between two lines of rank 0")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum instead of averaging")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    args = parser.parse_args()
    if args.use_adasum and args.gradient_predivide_factor != 1:
        parser.error("--gradient-predivide-factor divides an average: leave it out with --use-adasum")
    return args


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 12, 5), torch.nn.MaxPool2d(2), torch.nn.ReLU(),
            torch.nn.Conv2d(12, 24, 5), torch.nn.MaxPool2d(2), torch.nn.ReLU(),
        )  # fmt: skip
        self.classifier = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(24 * 4 * 4, 64),
            torch.nn.ReLU(),
            torch.nn.Dropout(),
            torch.nn.Linear(64, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def dataset(images: object, labels: object) -> TensorDataset:
    pixels = torch.tensor(images, dtype=torch.float32).div_(255).sub_(0.286).div_(0.353)
    return TensorDataset(pixels.unsqueeze(1), torch.tensor(labels, dtype=torch.int64))


def train(
    model: Net, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int, args: argparse.Namespace
) -> None:
    model.train()
    loader.sampler.set_epoch(epoch)  # another order in each epoch
    for number, (images, labels) in enumerate(loader):
        if number == args.batches:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if number % args.log_interval == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} [{number * len(images)}/{len(loader.sampler)}] loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def test(model: Net, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy of all images; each rank looks at its share."""
    model.eval()
    loss, right = 0.0, 0.0
    for images, labels in loader:
        scores = model(images)
        loss += F.cross_entropy(scores, labels, reduction="sum").item()
        right += (scores.argmax(1) == labels).sum().item()
    sums = torch.tensor([loss, right, len(loader.sampler)], dtype=torch.float64)
    loss, right, count = hvd.allreduce(sums, op=hvd.Sum, name="test").tolist()
    return loss / count, right / count


def main() -> None:
    args = arguments()
    hvd.init()
    lower = 1 << hvd.size().bit_length() - 1
    if args.use_adasum and hvd.size() != lower:
        raise SystemExit(
            f"--use-adasum takes a power of two of ranks: start {lower} or {2 * lower} ranks instead of {hvd.size()}"
        )
    torch.manual_seed(args.seed)

    data = fashion_mnist.load()
    train_set = dataset(data.train_images, data.train_labels)
    test_set = dataset(data.test_images, data.test_labels)
    mine = range(hvd.rank(), len(test_set), hvd.size())  # DistributedSampler would repeat images to make shares even
    train_loader = DataLoader(train_set, args.batch_size, sampler=DistributedSampler(train_set, hvd.size(), hvd.rank()))
    test_loader = DataLoader(test_set, args.test_batch_size, sampler=mine)

    model = Net()
    scale = 1 if args.use_adasum else hvd.size()  # Adasum finds the length of the step by itself
    plain = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(1, args.epochs + 1):
        train(model, optimizer, train_loader, epoch, args)
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test loss {loss:.4f}, accuracy {100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
