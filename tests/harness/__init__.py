"""What tests share: given data, fakes and ways to look at a program."""
