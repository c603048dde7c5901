"""Operations with fused kernels: attention, block-sparse attention, cross entropy, dropout with residual."""
