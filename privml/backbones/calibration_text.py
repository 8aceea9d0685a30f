"""Sentences for default calibration, written for this purpose: plain, odd, short and long."""

from __future__ import annotations

_TEXT = """
Rain.

Why not?

Please call me back tomorrow.

The committee voted seven to two in favour of the new budget.

A cold front will bring snow to the northern valleys by Thursday evening.

She scored twice in the final ten minutes and the stadium went silent.

Shares of the airline fell 12% after it cut its profit forecast for the year.

The probe entered orbit around Mars after a journey of seven months.

Mix the flour with two eggs, a pinch of salt and enough milk to make a smooth batter.

I cannot log in; the page says error 503 and then nothing happens.

Patients who received the drug reported fewer headaches than those given a placebo.

The treaty was signed in 1648 and ended thirty years of war.

def add(a, b): return a + b

Her first novel is slow, tender and, in its last fifty pages, unexpectedly funny.

What a waste of two hours: the plot has holes and the jokes are older than the actors.

The central bank raised interest rates by a quarter of a point to slow inflation.

Goalless at half-time, the match turned when the visitors lost their captain to injury.

A strike by dock workers has closed three ports and left cargo ships waiting at sea.

The new phone has a brighter screen, a faster chip and a battery that lasts two days.

Researchers trained a neural network to recognise bird songs from short recordings.

My grandmother kept bees behind the barn and sold the honey at the market every Saturday.

WARNING!!! Do NOT open this valve while the pump is running!!!

The defendant was acquitted of fraud but fined for failing to keep proper records.

Tickets cost £18.50, or £9.25 for students; doors open at 7:30 p.m.

Volcanic ash drifted across the strait and grounded flights for a third day.

The orchestra opened with a quiet overture before the storm of the second symphony.

To be, or not to be: that is the question most often put to this skull.

Elections will be held in March, the interim president told reporters on Monday.

The bridge, which carried forty thousand cars a day, was closed after cracks were found.

Solar panels on the roof of the school produce more power than its classrooms use.

He took the early train, missed the meeting anyway, and blamed the coffee machine.

Water boils at 100 degrees Celsius at sea level and at about 90 degrees at 3,000 metres.

A border dispute between the two countries flared again when soldiers exchanged fire.

The museum bought a small Dutch landscape that had hung unnoticed in a dentist's office.

Our quarterly revenue rose to 4.3 billion dollars, driven by cloud services and advertising.

Dear customer, your parcel no. 7731-XK-09 is held at customs. Please pay the duty on line.

The puppy chewed one shoe, buried the other and slept in the laundry basket.

An earthquake of magnitude 6.1 shook the coast, but no tsunami warning was issued.

Zyx qwv blorp 88&*( @@ ~~ ;;; ... -- ???

El tren sale a las ocho y llega a Madrid antes del mediodía.

Die Bibliothek ist montags geschlossen, an allen anderen Tagen bis acht Uhr geöffnet.

今日はとても暑いです。

https://example.org/a/very/long/path?with=arguments&and=more#fragment

1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20

the the the the the the the the the the the the the the the the

The champion defended her title in straight sets, losing only five games on the way.

Antibiotics do not help against a cold, because colds are caused by viruses.

Parliament rejected the amendment; opposition leaders said they would appeal to the court.

The recipe calls for saffron, but turmeric gives nearly the same colour at a tenth of the price.

A start-up that lets neighbours share tools has raised five million dollars from investors who
hope that people will soon tire of owning drills they use for thirteen minutes a year.

The coach defended his decision to rest three regular players, saying that the schedule left him
no choice: four matches in eleven days, two of them away, and a long flight in between.

Scientists drilling through the ice sheet brought up air that was last breathed by mammoths;
bubbles in the core show how carbon dioxide rose and fell over eight hundred thousand years.

The minister resigned late on Friday after letters came to light which show that he had known
about the faulty meters for two years, although he had told parliament the opposite in June.

This laptop looks lovely and the keyboard is a joy, but the fan howls at the slightest load, the
webcam makes everyone look ill, and after four months the hinge has begun to creak.

Although the village lies only forty kilometres from the capital, the road climbs through so many
bends that the bus takes two hours, and in winter, when the pass is closed, a day.

Under the agreement, the company will pay 240 million dollars to settle claims that it misled
investors about the safety of its batteries; it neither admits nor denies wrongdoing.

In chess, as in cooking, the amateur looks for the brilliant idea and the master makes sure that
nothing burns: development first, then the king's safety, and only then the attack.

The patient, a 54-year-old man with a history of high blood pressure, came in with chest pain that
had lasted for three hours; the electrocardiogram was normal, the blood test was not, and he was
taken to the catheter laboratory within forty minutes.

Once upon a time a miller had three sons, and when he died the eldest got the mill, the second the
donkey and the youngest nothing but the cat, which sat down before him, looked him in the eye and
said that with a pair of boots and a sack it would make a rich man of him.

Traffic on the ring road came to a standstill this morning when a lorry carrying eleven tonnes of
tomatoes overturned near the airport exit. Nobody was hurt. Police closed two lanes while a digger
was brought in, and the smell, drivers said, was rather like that of a pizzeria.

The library offers (a) free internet access, (b) a reading room with forty seats, (c) a small
collection of maps from 1780-1910, and (d) every second Tuesday at 18:00, an introduction to
family research; registration is not required, but the number of places is limited to 12.

For decades the valley lived off its one factory, which made locks. When it closed, people said
the young would leave, and many did. Those who stayed turned the halls into workshops, a brewery,
a climbing wall and a theatre, so that today more people work behind the old brick walls than in
the best years of the company, if for rather less money.

Light from the galaxy has travelled for more than thirteen billion years, stretched by the
expansion of space into the infrared. Astronomers compared its spectrum with models of young stars
and concluded that it formed less than four hundred million years after the beginning. If so,
matter clumped together sooner than the accepted theory allows, and either the masses of the stars
are overestimated or something is missing from the theory itself.

The tenant shall keep the flat in good order, shall not make structural changes without the
landlord's consent in writing, and shall report any damage without delay. The deposit of two
months' rent is returned within thirty days of the end of the lease, less the cost of repairs that
go beyond normal wear. Notice must be given in writing three months before the end of a quarter;
if it is given late, the lease runs on for another three months at the same rent.
"""

SENTENCES: tuple[str, ...] = tuple(" ".join(part.split()) for part in _TEXT.split("\n\n"))
"""Single texts, one line each."""
