import type { Random } from '../../test/support/random.ts'
import { dictionary } from './dictionary.ts'

/** Makes a few changes without regard to what the text means. */
export function mutate(random: Random, text: string): string {
  let result = text
  for (let times = 1 + random.small(4); times > 0; times--) result = mutateOnce(random, result)
  return result
}

function mutateOnce(random: Random, text: string): string {
  const at = random.below(text.length + 1)
  const length = 1 + random.small(Math.max(1, Math.min(text.length - at, 60)))
  const [before, after] = [text.slice(0, at), text.slice(at)]
  const flipped = (text.charCodeAt(at) || 0) ^ (1 << random.below(8))
  const change = random.pick([
    () => before + String.fromCharCode(flipped) + after.slice(1),
    () => before + String.fromCharCode(random.below(256)) + after.slice(1),
    () => before + after.slice(length),
    () => before + after.slice(0, length) + after,
    () => before + random.pick(dictionary.pieces) + after.slice(1),
    () => before + text.slice(random.below(text.length + 1)).slice(0, length) + after,
    () => (random.chance(0.2) ? before : before + after.slice(1)),
    () => before + random.pick(dictionary.pieces) + after,
  ])
  return change()
}
