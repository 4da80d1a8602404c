"""`cordee.train.metrics` under its public name."""

from cordee.train.metrics import accuracy as accuracy
from cordee.train.metrics import mean_absolute_error as mean_absolute_error
from cordee.train.metrics import mean_squared_error as mean_squared_error
from cordee.train.metrics import top5 as top5
