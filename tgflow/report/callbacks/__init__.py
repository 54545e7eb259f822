"""Trainer callbacks that log figures: to TensorBoard, or a custom logger."""

from tgflow.report.callbacks.logger import FigureCallback
from tgflow.report.callbacks.tensorboard import TensorBoard

__all__ = ["FigureCallback", "TensorBoard"]
