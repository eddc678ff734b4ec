"""The elastic training runtime. The only part of Lull that imports torch."""
