import { FromVariable, type Rule } from './rules.ts'
import { SETTINGS, type Variable, VARIABLES } from './settings.ts'

/** What Kubernetes sets for a Service named plants, or plants-…: names and values. */
const SERVICE_VARIABLE = new RegExp(
  `^PLANTS(_[A-Z0-9_]+)?_(${[
    'SERVICE_HOST=[0-9a-f.:]+',
    'SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+',
    'PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+',
    'PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR=[0-9a-f.:]+)',
  ].join('|')})$`,
)

/** The environment variables that set options. An empty value counts as unset. */
export class Environment {
  readonly #values: ReadonlyMap<string, string>
  readonly #variables: readonly Variable[]

  constructor(env: Readonly<Record<string, string | undefined>>) {
    this.#values = new Map(
      Object.entries(env).flatMap(([name, text]) => (text ? [[name, text]] : [])),
    )
    this.#variables = VARIABLES.filter(({ name }) => this.#values.has(name))
  }

  /** Names that begin with PLANTS_ and mean nothing. */
  unknown(): readonly string[] {
    const known = new Set(VARIABLES.map(({ name }) => name))
    const isUnknown = ([name, text]: readonly [string, string]): boolean =>
      name.startsWith('PLANTS_') && !known.has(name) && !SERVICE_VARIABLE.test(`${name}=${text}`)
    return [...this.#values].filter(isUnknown).map(([name]) => name)
  }

  /** The variables that are set for an option, or for the options of a group: `etcd.`. */
  namesIn(group: string): readonly string[] {
    return this.#variables.filter(({ option }) => option.startsWith(group)).map(({ name }) => name)
  }

  /** The variable of an option; of several the one that is set. */
  variableOf(option: string): string {
    const isIt = (variable: Variable): boolean => variable.option === option
    return (this.#variables.find(isIt) ?? VARIABLES.find(isIt))?.name ?? option
  }

  /** What an application would pass to say the same. A group without any value is left out. */
  options(
    rules: Readonly<Record<string, Rule<unknown>>> = SETTINGS,
  ): Readonly<Record<string, unknown>> {
    const options: Record<string, unknown> = {}
    for (const [name, { members, variables = {} }] of Object.entries(rules)) {
      const group = members && this.options(members)
      if (group && Object.keys(group).length > 0) options[name] = group
      for (const variable of Object.keys(variables)) {
        const text = this.#values.get(variable)
        if (text !== undefined) options[name] = new FromVariable(variable, text)
      }
    }
    return options
  }
}
