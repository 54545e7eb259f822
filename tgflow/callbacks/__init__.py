"""Callbacks of trainers that log figures: to TensorBoard, CSV, Weights & Biases, or one's own way.

Each is given to a trainer, as in `trainer.run(stream, [tg.callbacks.CSVLogger("figures.csv")])`.
"""

from tgflow.callbacks.csv_logger import CSVLogger
from tgflow.callbacks.logger import FigureCallback, Logger
from tgflow.callbacks.tensorboard import TensorBoard
from tgflow.callbacks.wandb import WandB

__all__ = ["CSVLogger", "FigureCallback", "Logger", "TensorBoard", "WandB"]
