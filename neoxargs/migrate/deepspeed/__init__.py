"""DeepSpeed's JSON, and files of programs that embed it."""
